"""The blocks `perturb:`, the faithfulness curves of a run, and `select:`, a choice of options by such curves."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from jobs.config.base import AtLeast0, AtLeast1, Embedding, Explanation, Frozen, Names, PartOfRun
from lrp_core.records.explained import NONE
from lrp_core.records.kinds import RESAMPLE, Kind
from lrp_core.records.types import Request

if TYPE_CHECKING:  # with numpy, which a mistyped key need not wait for
    from evaluation.scoring.faithfulness.flips import Flips
    from evaluation.tasks.record import Output

Way = Literal["zero", "black", "mask", "delete", "resample"]
PIXEL_STEPS = 64  # at most, of a curve
Measure = Literal["areas", "shares"]


class PerturbConfig(PartOfRun):
    """Curves of perturbed inputs (AttnLRP B.2, NormXLogit 5), at the first precision of each model and task."""

    tasks: Names | None = None
    """null: all"""
    methods: Names | None = None
    """null: all"""
    explanations: tuple[Explanation, ...] | None = None
    """of those that are computed; null: all of them"""
    embeddings: tuple[Embedding, ...] | None = None
    """as `explanations`"""
    measures: tuple[Measure, ...] | None = Field(default=None, min_length=1)
    """What is measured: areas under the logit as tokens go one after the other, or what becomes of the probability (of
    a score: of the correlation with gold scores) without 10, ..., 90 % of the top tokens, and with those alone.
    null: areas of words and of images, shares of labels and scores of texts."""
    ways: tuple[Way, ...] | None = Field(default=None, min_length=1)
    """How a token goes: its embedding is zeroed, a mask token takes its place (masked models), it is deleted (causal
    ones), or tokens that follow its left neighbour elsewhere in the task take its place (resample). Of an image, a
    patch's pixels are zero to the model (zero), or zero before they are normalised (black). A model draws those of the
    list that its kind knows. null: areas by zero, shares by mask or delete."""
    draws: AtLeast1 = 3
    """of tokens in place of those that go (resample): a curve is the mean over them"""
    samples: AtLeast1 | None = None
    """of a task, drawn at random, the same for all methods; null: all"""
    steps: AtLeast1 = 100
    """points of a curve; texts of no more tokens are flipped token by token"""
    flip_special: bool | None = None
    """Whether what the tokenizer's template adds goes too; it is never resampled. null: for areas it does, for shares
    it never does."""
    pixels: bool = False
    """of images: single pixels go, in at most 64 steps, and not whole patches"""
    paper: bool = False
    """shares as NormXLogit's notebooks take them: of all tokens; every one but the first may go"""

    @property
    def area_ways(self) -> tuple[Way, ...]:
        """The ways in which tokens go where areas are measured."""
        return self.ways or ("zero",)

    @property
    def area_special(self) -> bool:
        """True where special tokens go too while areas are measured."""
        return self.flip_special is not False

    def area_steps(self, kind: Kind) -> int:
        """Points of a curve of areas; pixels are many, and go in fewer steps."""
        return min(self.steps, PIXEL_STEPS) if kind.images and self.pixels else self.steps

    def flips_of(self, kind: Kind, output: Output, seed: int) -> tuple[Flips, ...]:
        """The removals of tokens to measure for a model of this kind that puts out `output`.

        Mask tokens and the values in place of pixels are left open. `seed` decides the order of equal relevance.
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
        """The flips of a perturbation when areas are measured, see `flips_of`."""
        only = self.model_copy(update={"measures": ("areas",), "ways": (way,)})
        return only.flips_of(kind, "token", seed)[0]

    def _drawn(self, flips: Flips) -> Flips:
        """`flips` with the number of draws where tokens are drawn; special tokens stay there."""
        return replace(flips, draws=self.draws, flip_special=False) if flips.way == RESAMPLE else flips

    def asks(self, request: Request) -> bool:
        """True if curves of this variant are configured. A choice that the method does not have excludes nothing."""
        explanations = self.explanations or (request.explanation,)
        embeddings = self.embeddings or (request.embedding,)
        return request.explanation in (*explanations, NONE) and request.embedding in (*embeddings, NONE)


class SelectConfig(Frozen):
    """A choice for every model, precision, task and method with a list: the largest area difference (AttnLRP B.2).

    Curves are drawn as `perturb` draws them, in the first of its `ways` that the model knows.
    """

    samples: AtLeast1 = 50
    """of a task, the same for all methods"""
    seed: AtLeast0 = 0
    """of the draw of these samples"""

    @property
    def draw(self) -> str:
        """The name of the draw of samples: different from that of the curves' samples under the same seed."""
        return f"select:{self.seed}"
