"""The numbers of an answer after prompts without some of their units, and relevance of units that is made of them.

Shapes: M masks, n units, G tokens of the answer. No torch here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

_UNDERFLOW = 1e-300  # below this float64 loses digits


class UnitRelevance(NamedTuple):
    """Relevance of units [n] by explanation: `target`, `log_prob`, or `none` for methods without a choice."""

    values: Mapping[str, np.ndarray]
    prompts: int  # that it is made of


@dataclass(frozen=True)
class Ablated:
    """The answer of a sample after ablated prompts; indices are of masks."""

    kept: np.ndarray  # [M, n] bool
    logits: np.ndarray  # [M, G] f of each token of the answer
    log_odds: np.ndarray  # [M, G] l = f - logsumexp(other logits)
    full: int  # nothing is gone
    without: np.ndarray  # [n] one unit is gone, unit by unit
    fit: np.ndarray = field(default_factory=lambda: np.zeros(0, int))  # masks that methods may be fitted to
    judge: np.ndarray = field(default_factory=lambda: np.zeros(0, int))  # masks that methods are judged by
    #: Of Shapley values: no unit, a set of each pair, then their complements; and the pairs' weights. Empty: not run.
    shapley: np.ndarray = field(default_factory=lambda: np.zeros(0, int))
    shapley_weights: np.ndarray = field(default_factory=lambda: np.zeros(0))

    @property
    def units(self) -> int:
        return self.kept.shape[1]

    @property
    def answer_tokens(self) -> int:
        return self.logits.shape[1]

    @cached_property
    def log_probability(self) -> np.ndarray:
        """L [M], the log-probability of the answer: the sum of logsigmoid(l)."""
        return -np.logaddexp(0.0, -self.log_odds).sum(axis=1)

    @cached_property
    def answer_odds(self) -> np.ndarray:
        """y [M] = L - log(1 - exp(L)), the log-odds of the answer."""
        return odds_of(self.log_probability, self.log_odds)

    @cached_property
    def summed_logits(self) -> np.ndarray:
        """F [M], the sum of the logits."""
        return self.logits.sum(axis=1)

    def of_tokens(self, tokens: np.ndarray) -> Ablated:
        """The same for a part of the answer, its `tokens` [G] bool."""
        return replace(self, logits=self.logits[:, tokens], log_odds=self.log_odds[:, tokens])


def odds_of(log_probability: np.ndarray, log_odds: np.ndarray) -> np.ndarray:
    """y = L - log(1 - exp(L)) [M] from L [M] and the l that it is the sum of logsigmoids of [M, G].

    log(1 - exp(L)) is log(-expm1(L)) for L > -ln 2, else log1p(-exp(L)); where L underflows, y = -logsumexp(-l).
    """
    whole = log_probability > -_UNDERFLOW
    below = np.where(whole, -1.0, log_probability)
    near_one = below > -np.log(2.0)
    complement = np.where(
        near_one,
        np.log(-np.expm1(np.where(near_one, below, -0.5))),
        np.log1p(-np.exp(np.where(near_one, -1.0, below))),
    )
    certain = -np.logaddexp.reduce(-log_odds, axis=1)
    return np.where(whole, certain, below - complement)


def leave_one_out(ablated: Ablated) -> UnitRelevance:
    """y of the whole prompt minus y without each unit."""
    odds = ablated.answer_odds
    return UnitRelevance({"none": odds[ablated.full] - odds[ablated.without]}, 1 + ablated.units)
