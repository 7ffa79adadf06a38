"""What every record of a configuration has, and the values that several of them name."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, model_validator

from lrp_core.explained import EXPLAINED
from lrp_core.types import nearest

Embedding = Literal["full", "partial"]


class Frozen(BaseModel):
    """Data that never changes; a key that is not known is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class PartOfRun(Frozen):
    """What concerns a part of the run: the tasks, models and methods that its lists name; all where one is null."""

    @model_validator(mode="after")
    def _names_some(self) -> Self:
        empty = [kind for kind in ("tasks", "models", "methods") if getattr(self, kind, None) == ()]
        if empty:
            raise ValueError(f"`{empty[0]}` names none: leave it out for all, or leave out what it is a part of")
        return self

    def takes(self, **named: str) -> bool:
        """Whether it concerns the task, model and method of these names, as in ``takes(task="qa", model="bert")``."""
        lists = {name: getattr(self, f"{kind}s") for kind, name in named.items()}
        return all(own is None or name in own for name, own in lists.items())


def _explanation(value: str) -> str:
    if value not in EXPLAINED:
        raise ValueError(f"no explanation {value!r}{nearest(value, EXPLAINED)}")
    return value


Explanation = Annotated[str, AfterValidator(_explanation)]
