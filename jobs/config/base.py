"""The base classes of the records of a configuration, and types of values that several of them share."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self, TypeVar, get_args, get_origin

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from closelook.lrp_core.records.explained import EXPLAINED
from closelook.lrp_core.records.types import nearest

T = TypeVar("T")


class Frozen(BaseModel):
    """A section of the configuration: immutable, an unknown key is an error, the string below a field documents it."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class PartOfRun(Frozen):
    """A section that may apply to only some of the run's tasks, models or methods: those of its lists; null: all."""

    @model_validator(mode="after")
    def _names_some(self) -> Self:
        """Raise ValueError for an empty list, which would apply to nothing."""
        for kind in ("tasks", "models", "methods"):
            if self.names(kind) == ():
                raise ValueError(f"`{kind}` is empty: leave it out to take all, or leave out the block that it is in")
        return self

    def names(self, kind: str) -> tuple[str, ...] | None:
        """The section's list `kind` ("tasks", "models" or "methods"); None if it is null or there is no such key."""
        names: tuple[str, ...] | None = vars(self).get(kind)
        return names

    def takes(self, **named: str) -> bool:
        """True if the section applies to the named task, model and method, as in `takes(task="qa", model="bert")`."""
        for kind, name in named.items():
            names = self.names(f"{kind}s")
            if names is not None and name not in names:
                return False
        return True


def section_in(annotation: Any) -> tuple[type[BaseModel] | None, str]:
    """(section class within the type of a field, path from the field's key to it: "", "[]" or ".NAME").

    "[]" stands for a list of sections, ".NAME" for a mapping to them. (None, "") for types without a section.
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
    """`value` unchanged. Raises ValueError, with the nearest name, if it is no explanation."""
    if value not in EXPLAINED:
        raise ValueError(f"no explanation {value!r}{nearest(value, EXPLAINED)}")
    return value


AtLeast0 = Annotated[int, Field(ge=0)]
AtLeast1 = Annotated[int, Field(ge=1)]
Embedding = Literal["full", "partial"]
Explanation = Annotated[str, AfterValidator(_explanation)]
Names = tuple[str, ...]
Some = Annotated[tuple[T, ...], AfterValidator(lambda values: tuple(dict.fromkeys(values))), Field(min_length=1)]
