"""The `perturb:` block: which faithfulness curves a run draws."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from jobs.config.base import Embedding, Explanation, Frozen
from lrp_core.explained import NONE
from lrp_core.types import Request

Way = Literal["zero", "mask", "delete"]


class PerturbConfig(Frozen):
    """Curves of perturbed inputs (AttnLRP B.2), at the first precision of each model and task."""

    tasks: tuple[str, ...] | None = None  # null: all
    methods: tuple[str, ...] | None = None
    explanations: tuple[Explanation, ...] | None = None  # of those that are computed; null: all of them
    embeddings: tuple[Embedding, ...] | None = None
    # How a token goes: its embedding is zeroed, a mask token takes its place (masked models), it is deleted (causal
    # ones). A model draws those of the list that its kind knows.
    ways: tuple[Way, ...] = Field(default=("zero",), min_length=1)
    samples: int | None = Field(default=None, ge=1)  # of a task, drawn at random, the same for all methods; null: all
    steps: int = Field(default=100, ge=1)  # points of a curve; texts of no more tokens are flipped token by token
    flip_special: bool = True  # whether what the tokenizer's template adds goes too

    def draws(self, task: str, method: str) -> bool:
        """Whether curves of this method are wanted on this task."""
        return task in (self.tasks or (task,)) and method in (self.methods or (method,))

    def asks(self, request: Request) -> bool:
        """Whether curves of this variant are wanted; of methods that do not know a choice they are in any case."""
        explanations, embeddings = (
            self.explanations or (request.explanation,),
            self.embeddings or (request.embedding,),
        )
        return request.explanation in (*explanations, NONE) and request.embedding in (*embeddings, NONE)
