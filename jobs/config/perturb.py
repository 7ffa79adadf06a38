"""The blocks `perturb:`, deletion and insertion curves, and `select:`, a choice of options by such curves."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from jobs.config.base import AtLeast0, AtLeast1, Embedding, Explanation, Frozen, Names, PartOfRun
from lrp_core.records.explained import NONE
from lrp_core.records.kinds import RESAMPLE, Kind
from lrp_core.records.types import Request

if TYPE_CHECKING:  # they import numpy, which takes longer than parsing a configuration
    from evaluation.scoring.faithfulness.flips import Flips
    from evaluation.tasks.record import Output

Way = Literal["zero", "black", "mask", "delete", "resample"]
PIXEL_STEPS = 64  # most points of a curve that removes pixels
Measure = Literal["areas", "shares"]


class PerturbConfig(PartOfRun):
    """Deletion and insertion curves (AttnLRP B.2, NormXLogit 5), at the first precision of each model and task."""

    tasks: Names | None = None
    """tasks with curves; null: all"""
    methods: Names | None = None
    """methods with curves; null: all"""
    explanations: tuple[Explanation, ...] | None = None
    """explanations with curves, of those that the run computes; null: all of them"""
    embeddings: tuple[Embedding, ...] | None = None
    """embeddings with curves, of those that the run computes; null: all of them"""
    measures: tuple[Measure, ...] | None = Field(default=None, min_length=1)
    """areas: the area under the logit as tokens are removed one after the other. shares: the change of the probability
    (for a score, of the correlation with gold scores) without the top 10, ..., 90 % of the tokens, and with these
    alone. null: areas where a word is predicted and for images, shares for labels and scores of texts."""
    ways: tuple[Way, ...] | None = Field(default=None, min_length=1)
    """How a token is removed: zero (its embedding is set to 0), mask (replaced by the mask token; masked models),
    delete (left out; causal models), or resample (replaced by tokens that follow its left neighbour elsewhere in the
    task). For images: zero (a patch's pixels are 0 as the model gets them) or black (0 before they are normalised). A
    model takes those of the list that apply to its kind. null: zero for areas, mask or delete for shares."""
    draws: AtLeast1 = 3
    """for resample: how many draws of replacing tokens a curve is the mean of"""
    samples: AtLeast1 | None = None
    """samples of a task, drawn at random, the same for all methods; null: all"""
    steps: AtLeast1 = 100
    """points of a curve; in texts of no more tokens than this, each point removes one token"""
    flip_special: bool | None = None
    """true: special tokens that the tokenizer adds are removed too, but never resampled. null: true for areas, false
    for shares."""
    pixels: bool = False
    """for images: remove single pixels, in at most 64 steps, instead of whole patches"""
    paper: bool = False
    """shares as in NormXLogit's notebooks: shares of all tokens, of which all but the first may be removed"""

    @property
    def area_ways(self) -> tuple[Way, ...]:
        """The ways in which tokens are removed where areas are measured."""
        return self.ways or ("zero",)

    @property
    def area_special(self) -> bool:
        """True if special tokens are removed too where areas are measured."""
        return self.flip_special is not False

    def area_steps(self, kind: Kind) -> int:
        """The points of a curve whose area is measured: `steps`, but at most PIXEL_STEPS where pixels are removed."""
        return min(self.steps, PIXEL_STEPS) if kind.images and self.pixels else self.steps

    def flips_of(self, kind: Kind, output: Output, seed: int) -> tuple[Flips, ...]:
        """The settings of every curve of a model of this kind that predicts `output`: one for each measure and way.

        The mask token, and the values that replace pixels, are filled in once the model is open. `seed` decides the
        order of tokens with equal relevance.
        """
        from evaluation.scoring.faithfulness.flips import AREAS, SHARES, SHARES_OF_TOKENS, Flips

        pixels = kind.images and self.pixels
        default = AREAS if output == "token" or kind.images else SHARES_OF_TOKENS
        flips = []
        for measure in self.measures or (default,):
            is_area = measure == AREAS
            special = self.area_special if is_area else bool(self.flip_special)
            steps = self.area_steps(kind) if is_area else len(SHARES)
            paper = self.paper and measure == SHARES_OF_TOKENS
            ways = self.area_ways if is_area or kind.images else self.ways or ("mask", "delete")
            for way in ways:
                if way in kind.perturbations:
                    of_way = Flips(way, steps, special and not kind.images, seed, None, measure, paper, pixels)
                    flips.append(self._drawn(of_way))
        return tuple(flips)

    def area_flips(self, way: str, kind: Kind, seed: int) -> Flips:
        """The settings of the curve that removes tokens by `way` and measures areas, see `flips_of`."""
        only = self.model_copy(update={"measures": ("areas",), "ways": (way,)})
        return only.flips_of(kind, "token", seed)[0]

    def _drawn(self, flips: Flips) -> Flips:
        """`flips` with `draws` set and special tokens kept, if tokens are resampled; else unchanged."""
        return replace(flips, draws=self.draws, flip_special=False) if flips.way == RESAMPLE else flips

    def asks(self, request: Request) -> bool:
        """True if there are curves of this explanation and embedding. NONE (of methods without variants) passes."""
        explanations = self.explanations or (request.explanation,)
        embeddings = self.embeddings or (request.embedding,)
        return request.explanation in (*explanations, NONE) and request.embedding in (*embeddings, NONE)


class SelectConfig(Frozen):
    """The choice among listed values of options: those with the largest faithfulness ΔA (AttnLRP B.2) are taken.

    A choice is made for every model, precision, task and method whose entry has a list. Curves are drawn as `perturb`
    says, by the first of its `ways` that applies to the model.
    """

    samples: AtLeast1 = 50
    """samples of a task on which options are compared, the same for all methods"""
    seed: AtLeast0 = 0
    """seed of the draw of these samples"""

    @property
    def draw(self) -> str:
        """The seed text of the draw of samples, so that it differs from the draw for curves with the same seed."""
        return f"select:{self.seed}"
