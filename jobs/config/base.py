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


def _explanation(value: str) -> str:
    if value not in EXPLAINED:
        raise ValueError(f"no explanation {value!r}{nearest(value, EXPLAINED)}")
    return value


Explanation = Annotated[str, AfterValidator(_explanation)]
