"""What every record of a configuration has, and the values that several of them name."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict

from lrp_core.explained import EXPLAINED
from lrp_core.types import nearest

Embedding = Literal["full", "partial"]


class Frozen(BaseModel):
    """Data that never changes; a key that is not known is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class PartOfRun(Frozen):
    """What concerns a part of the run: the tasks, models and methods that its lists name; all where one is null."""

    def takes(self, **named: str) -> bool:
        """Whether it concerns the task, model and method of these names, as in ``takes(task="qa", model="bert")``."""
        return all(name in (getattr(self, f"{kind}s") or (name,)) for kind, name in named.items())


def _explanation(value: str) -> str:
    if value not in EXPLAINED:
        raise ValueError(f"no explanation {value!r}{nearest(value, EXPLAINED)}")
    return value


Explanation = Annotated[str, AfterValidator(_explanation)]
