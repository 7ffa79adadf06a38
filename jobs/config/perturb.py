"""The `perturb:` block: which faithfulness curves a run draws."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from jobs.config.base import Embedding, Explanation, PartOfRun
from lrp_core.explained import NONE
from lrp_core.kinds import Kind
from lrp_core.types import Request

if TYPE_CHECKING:  # with numpy, which a mistyped key need not wait for
    from evaluation.scoring.flips import Flips
    from evaluation.tasks.record import Output

Way = Literal["zero", "black", "mask", "delete"]
PIXEL_STEPS = 64
Measure = Literal["areas", "shares"]


class PerturbConfig(PartOfRun):
    """Curves of perturbed inputs (AttnLRP B.2, NormXLogit 5), at the first precision of each model and task."""

    tasks: tuple[str, ...] | None = None  # null: all
    methods: tuple[str, ...] | None = None  # null: all
    explanations: tuple[Explanation, ...] | None = None  # of those that are computed; null: all of them
    embeddings: tuple[Embedding, ...] | None = None  # as `explanations`
    # What is measured: areas under the logit as tokens go one after the other, or what becomes of the probability (of a
    # score: of the correlation with gold scores) without 10, ..., 90 % of the top tokens, and with those alone.
    # null: areas of words and of images, shares of labels and scores of texts.
    measures: tuple[Measure, ...] | None = Field(default=None, min_length=1)
    # How a token goes: its embedding is zeroed, a mask token takes its place (masked models), it is deleted (causal
    # ones). Of an image, a patch's pixels are zero to the model (zero), or zero before they are normalised (black).
    # A model draws those of the list that its kind knows. null: areas by zero, shares by mask or delete.
    ways: tuple[Way, ...] | None = Field(default=None, min_length=1)
    samples: int | None = Field(default=None, ge=1)  # of a task, drawn at random, the same for all methods; null: all
    steps: int = Field(default=100, ge=1)  # points of a curve; texts of no more tokens are flipped token by token
    # Whether what the tokenizer's template adds goes too. null: for areas it does, for shares it never does.
    flip_special: bool | None = None
    pixels: bool = False  # of images: single pixels go, in at most 64 steps, and not whole patches
    paper: bool = False  # shares as NormXLogit's notebooks take them: of all tokens; every one but the first may go

    @property
    def area_ways(self) -> tuple[Way, ...]:
        return self.ways or ("zero",)

    @property
    def area_special(self) -> bool:
        """Whether special tokens go where areas are measured."""
        return True if self.flip_special is None else self.flip_special

    def area_steps(self, kind: Kind) -> int:
        """Points of a curve of areas; pixels are many, and go in fewer steps."""
        return min(self.steps, PIXEL_STEPS) if kind.images and self.pixels else self.steps

    def flips_of(self, kind: Kind, output: Output, seed: int) -> tuple[Flips, ...]:
        """How tokens go of a model of this kind that puts out `output`; mask tokens, and what stands in the place of
        pixels, are left open. `seed` is of the order of equal relevance.
        """
        from evaluation.scoring.flips import AREAS, SHARES, SHARES_OF_TOKENS, Flips

        known = kind.perturbations
        by_areas = output == "token" or kind.images
        measures = self.measures or ((AREAS,) if by_areas else (SHARES_OF_TOKENS,))
        flips = []
        for measure in measures:
            special = not kind.images and (self.area_special if measure == AREAS else bool(self.flip_special))
            paper = self.paper and measure == SHARES_OF_TOKENS
            ways = self.area_ways if measure == AREAS or kind.images else self.ways or ("mask", "delete")
            steps = self.area_steps(kind) if measure == AREAS else len(SHARES)
            pixels = kind.images and self.pixels
            flips += [Flips(way, steps, special, seed, None, measure, paper, pixels) for way in ways if way in known]
        return tuple(flips)

    def asks(self, request: Request) -> bool:
        """Whether curves of this variant are wanted; of methods that do not know a choice they are in any case."""
        explanations, embeddings = (
            self.explanations or (request.explanation,),
            self.embeddings or (request.embedding,),
        )
        return request.explanation in (*explanations, NONE) and request.embedding in (*embeddings, NONE)
