"""Deletion curves of samples: the model's outputs as tokens are removed in the orders of many variants.

They follow AttnLRP B.2 (areas) and NormXLogit 5 (shares). Equal states of a sample run once, or once for each draw of
replacement tokens, for all variants and orders together.

Shapes: V variants (methods, explanations ...), T tokens of a sample, S states of a curve, D draws; the axis of 2 is the
two orders of `Flips`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from evaluation.scoring.faithfulness.flipping import INSTEAD, Flipper, Outputs
from evaluation.scoring.faithfulness.flips import TARGET_LOGIT, Flips, Ranking, States, tie_order
from evaluation.scoring.faithfulness.scores import areas, with_gaps
from lrp_core.records.kinds import DELETE, RESAMPLE
from lrp_core.views.view import ModelView


@dataclass(frozen=True)
class PerturbedSample:
    """A sample and the states along the deletion curves of its variants."""

    row: Mapping[str, Any]
    counts: np.ndarray  # [2, S] numbers of removed tokens
    finite: np.ndarray  # [V] bool, True for variants whose relevance is finite
    states: States  # its only array of points is [finite V, 2, S]
    replacements: np.ndarray | None = None  # [D, T] tokens that replace removed ones, by draw

    @classmethod
    def of(cls, row: Mapping[str, Any], relevance: np.ndarray, flips: Flips, slot: bool) -> PerturbedSample:
        """The states of a view row with its masks, from `relevance` [V, T] (for pixels [V, H * W]).

        `slot` says that the row's position is a masked slot. If the row has a scope, only its tokens are removed. If
        tokens are resampled, the row holds `replacements` [D, T]. Raises UserError if no token may be removed.
        """
        chosen = flips.chosen(row, slot)
        pixels = row.get("pixel_values")
        picture = None if pixels is None else pixels.tobytes()
        ties = tie_order(row["input_ids"], flips.seed, picture=picture, size=len(chosen))
        ranking = Ranking.of(relevance, chosen, ties, keep_one=flips.way == DELETE)
        counts, removed = flips.states(ranking)
        replacements = row["replacements"] if flips.way == RESAMPLE else None
        return cls(row, counts, ranking.finite, States.of(removed[ranking.finite]), replacements)

    @property
    def rows(self) -> list[Mapping[str, Any]]:
        """The row once for each draw, with that draw's replacements; the row alone without draws."""
        if self.replacements is None:
            return [self.row]
        return [{**self.row, INSTEAD: tokens} for tokens in self.replacements]


@dataclass(frozen=True)
class Curves:
    """The deletion curves of a sample's variants; NaN where relevance or logits are not finite."""

    flips: Flips
    counts: np.ndarray  # [2, S] numbers of removed tokens
    logit: np.ndarray  # [V, 2, S] of the target
    probability: np.ndarray | None  # [V, 2, S]; None for a model that predicts a score
    correct: np.ndarray | None  # [V, 2, S] 1 or 0; None for a model that predicts a score
    target_id: int  # the token or class whose logit it is
    contrast: np.ndarray | None = None  # [V, 2, S] the target's logit minus the foil's; None without a foil

    def values(self, score: str) -> np.ndarray:
        """The curves [V, 2, S] of `score`, TARGET_LOGIT or CONTRAST."""
        if score == TARGET_LOGIT:
            return self.logit
        assert self.contrast is not None
        return self.contrast

    def areas(self, score: str = TARGET_LOGIT) -> dict[str, np.ndarray]:
        """`area_morf`, `area_lerf` and `delta_area` [V] of `score`; for curves that remove tokens one after another."""
        return areas(self.values(score), self.counts[0])


def compute_curves(
    view: ModelView, samples: Sequence[PerturbedSample], flips: Flips, token_budget: int
) -> tuple[list[Curves], Flipper]:
    """The curves of each sample, and the flipper, which counts the rows that ran and how often memory ran out.

    Raises UserError for a perturbation that the model does not support, and the errors of the model.
    """
    flipper = Flipper(view, flips.way, token_budget, flips.mask_id, flips.fill)
    outputs = iter(flipper.run([(row, sample.states) for sample in samples for row in sample.rows]))
    curves = []
    for sample in samples:
        by_state = Outputs.mean([next(outputs) for _ in sample.rows])
        at = by_state.at(sample.states.points[0])
        logit = with_gaps(at.logit, sample.finite)
        probability = correct = contrast = None
        if not view.predicts_score:
            probability, correct = with_gaps(at.probability, sample.finite), with_gaps(at.correct, sample.finite)
        if sample.row.get("foil_id") is not None:
            contrast = with_gaps(at.logit - at.foil, sample.finite)
        curves.append(Curves(flips, sample.counts, logit, probability, correct, sample.row["target_id"], contrast))
    return curves, flipper
