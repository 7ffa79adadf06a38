"""Curves of perturbed samples: what the model says as tokens go in the orders of many variants (AttnLRP B.2,
NormXLogit 5).

Equal states of a sample run once, or once a draw, whatever variants and orders ask for them. Shapes: V variants
(methods, explanations ...), T tokens of a sample, S states of a curve, D draws; the axis of 2 is the two orders of
`Flips`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from evaluation.scoring.faithfulness import areas, with_gaps
from evaluation.scoring.flipping import INSTEAD, Flipper, Outputs
from evaluation.scoring.flips import TARGET_LOGIT, Flips, Ranking, States, tie_order
from lrp_core.kinds import DELETE, RESAMPLE
from lrp_core.view import ModelView


@dataclass(frozen=True)
class Asked:
    """A sample and the states along the curves of its variants."""

    row: Mapping[str, Any]
    counts: np.ndarray  # [2, S] tokens that are gone
    finite: np.ndarray  # [V] whether the variant's relevance is
    states: States  # its only points are [finite V, 2, S]
    replacements: np.ndarray | None = None  # [D, T] tokens in place of those that go, by draw

    @classmethod
    def of(cls, row: Mapping[str, Any], relevance: np.ndarray, flips: Flips, slot: bool) -> Asked:
        """From a view row with its masks, and `relevance` [V, T] (of pixels [V, H * W]).

        Where tokens are drawn, the row has `replacements` [D, T].

        `slot` tells that its position is a masked slot. Where the row has a scope, only its tokens go. Raises UserError
        where no token may.
        """
        chosen = flips.chosen(row, slot)
        picture = row.get("pixel_values")
        seen = None if picture is None else picture.tobytes()
        ties = tie_order(row["input_ids"], flips.seed, picture=seen, size=len(chosen))
        ranking = Ranking.of(relevance, chosen, ties, keep_one=flips.way == DELETE)
        counts, removed = flips.states(ranking)
        replacements = row["replacements"] if flips.way == RESAMPLE else None
        return cls(row, counts, ranking.finite, States.of(removed[ranking.finite]), replacements)

    @property
    def rows(self) -> list[Mapping[str, Any]]:
        """The row, once for each draw."""
        if self.replacements is None:
            return [self.row]
        return [{**self.row, INSTEAD: tokens} for tokens in self.replacements]


@dataclass(frozen=True)
class Curves:
    """The curves of a sample's variants; NaN where relevance or logits are not finite."""

    flips: Flips
    counts: np.ndarray  # [2, S]
    logit: np.ndarray  # [V, 2, S] of the target
    probability: np.ndarray | None  # [V, 2, S]; None of a score
    correct: np.ndarray | None  # [V, 2, S] 1 or 0; None of a score
    target_id: int  # whose logit it is
    contrast: np.ndarray | None = None  # [V, 2, S] the target's logit minus the foil's; None without a foil

    def values(self, score: str) -> np.ndarray:
        """[V, 2, S] of the number TARGET_LOGIT or CONTRAST."""
        if score == TARGET_LOGIT:
            return self.logit
        assert self.contrast is not None
        return self.contrast

    def areas(self, score: str = TARGET_LOGIT) -> dict[str, np.ndarray]:
        """`area_morf`, `area_lerf` and `delta_area` [V] of this score. Of curves whose tokens go one by one."""
        return areas(self.values(score), self.counts[0])


def draw(view: ModelView, samples: Sequence[Asked], flips: Flips, token_budget: int) -> tuple[list[Curves], Flipper]:
    """The curves of each sample, and the flipper, which tells how many forwards ran and how often memory ran out.

    Raises what :class:`Flipper` raises.
    """
    flipper = Flipper(view, flips.way, token_budget, flips.mask_id, flips.fill)
    outputs = iter(flipper.run([(row, sample.states) for sample in samples for row in sample.rows]))
    curves = []
    for sample in samples:
        own = Outputs.mean([next(outputs) for _ in sample.rows])
        at = own.at(sample.states.points[0])
        logit, probability, correct = (with_gaps(v, sample.finite) for v in (at.logit, at.probability, at.correct))
        has_foil = sample.row.get("foil_id") is not None
        contrast = with_gaps(at.logit - at.foil, sample.finite) if has_foil else None
        one = Curves(flips, sample.counts, logit, probability, correct, sample.row["target_id"], contrast)
        curves.append(replace(one, probability=None, correct=None) if view.predicts_score else one)
    return curves, flipper
