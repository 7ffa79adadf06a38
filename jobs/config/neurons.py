"""The `neurons:` block: of which samples relevance of neurons is kept, and what their removal is to show."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from jobs.config.base import Explanation, Frozen

MOST = 50  # neurons of a sample that are kept


class KnockoutConfig(Frozen):
    """Knock-outs: the explained number without the first n neurons of each ranking."""

    tasks: tuple[str, ...] | None = None  # of those whose neurons are kept; null: all
    models: tuple[str, ...] | None = None  # by name; null: all
    methods: tuple[str, ...] | None = None  # whose rankings; null: all that are kept
    explanation: Explanation | None = None  # null: the first that is computed
    # How many of the first neurons go, a point of the curve each.
    counts: tuple[Annotated[int, Field(ge=1, le=MOST)], ...] = Field(default=(1, 2, 5, 10, 20, 50), min_length=1)


class NeuronsConfig(Frozen):
    """Neurons of feed-forward layers, at the first precision of each model and task (AttnLRP 3.4 and 4.3)."""

    tasks: dict[str, int | None]  # task -> samples, drawn at random, the same for all methods; null: every sample
    knockout: KnockoutConfig | None = KnockoutConfig()  # null: none
