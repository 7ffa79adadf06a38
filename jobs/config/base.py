"""The base classes of every record of a configuration, and the types of values that several records share."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self, get_args, get_origin

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from lrp_core.records.explained import EXPLAINED
from lrp_core.records.types import nearest


class Frozen(BaseModel):
    """A record that never changes; an unknown key is an error. The text below a field documents it."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class PartOfRun(Frozen):
    """A record about a part of the run: its lists `tasks`, `models` and `methods` name that part; null means all."""

    @model_validator(mode="after")
    def _names_some(self) -> Self:
        for kind in ("tasks", "models", "methods"):
            if self.names(kind) == ():
                raise ValueError(f"`{kind}` is empty: leave it out to take all, or leave out the block that it is in")
        return self

    def names(self, kind: str) -> tuple[str, ...] | None:
        """The list `kind`: "tasks", "models" or "methods". None where it is null or the record has no such key."""
        return dict(self).get(kind)

    def takes(self, **named: str) -> bool:
        """True where the record concerns the task, model and method named, as in `takes(task="qa", model="bert")`."""
        for kind, name in named.items():
            names = self.names(f"{kind}s")
            if names is not None and name not in names:
                return False
        return True


def section_in(annotation: Any) -> tuple[type[BaseModel] | None, str]:
    """The record within the type of a field, and the path from the key to it: "", "[]" (list) or ".NAME" (mapping).

    None and "" for types without a record, as `tuple[str, ...]`.
    """
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation, ""
    path = {tuple: "[]", dict: ".NAME"}.get(get_origin(annotation), "")
    for part in get_args(annotation):
        section, rest = section_in(part)
        if section is not None:
            return section, path + rest
    return None, ""


def _explanation(value: str) -> str:
    if value not in EXPLAINED:
        raise ValueError(f"no explanation {value!r}{nearest(value, EXPLAINED)}")
    return value


AtLeast0 = Annotated[int, Field(ge=0)]
AtLeast1 = Annotated[int, Field(ge=1)]
Embedding = Literal["full", "partial"]
Explanation = Annotated[str, AfterValidator(_explanation)]
Names = tuple[str, ...]
