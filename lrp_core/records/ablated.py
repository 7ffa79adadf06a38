"""Log-probabilities of an answer after prompts without some units, and relevance of units computed from them.

A mask says which units of the prompt are kept. Shapes: M masks, n units, G tokens of the answer. Imports no torch.
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
    prompts: int  # how many ablated prompts it is computed from


@dataclass(frozen=True)
class Ablated:
    """Logits of a sample's answer after prompts without some of their units. Integers are indices of masks."""

    kept: np.ndarray  # [M, n] bool, the units that each mask leaves in the prompt
    logits: np.ndarray  # [M, G] the logit f of each token of the answer
    log_odds: np.ndarray  # [M, G] l = f - logsumexp(other logits)
    full: int  # the mask that keeps every unit
    without: np.ndarray  # [n] for each unit, the mask that removes this unit alone
    fit: np.ndarray = field(default_factory=lambda: np.zeros(0, int))  # masks that methods may be fitted to
    judge: np.ndarray = field(default_factory=lambda: np.zeros(0, int))  # masks that methods are judged by
    #: For Shapley values: the mask without units, one mask of each complementary pair, then the complements in the same
    #: order; and the pairs' weights. Empty if they were not run.
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
        """The record of a part of the answer: its tokens where `tokens` [G] is True."""
        return replace(self, logits=self.logits[:, tokens], log_odds=self.log_odds[:, tokens])


def odds_of(log_probability: np.ndarray, log_odds: np.ndarray) -> np.ndarray:
    """Log-odds of an answer, y = L - log(1 - exp(L)) [M], from its `log_probability` L [M] and `log_odds` l [M, G].

    L is the sum of logsigmoid(l). For accuracy log(1 - exp(L)) is computed as log(-expm1(L)) if L > -ln 2, else as
    log1p(-exp(L)). If L underflows to 0, y is its limit, -logsumexp(-l).
    """
    whole = log_probability > -_UNDERFLOW
    below = np.where(whole, -1.0, log_probability)
    near_one = below > -np.log(2.0)
    of_large = np.log(-np.expm1(np.where(near_one, below, -0.5)))
    of_small = np.log1p(-np.exp(np.where(near_one, -1.0, below)))
    complement = np.where(near_one, of_large, of_small)
    certain = -np.logaddexp.reduce(-log_odds, axis=1)
    return np.where(whole, certain, below - complement)


def leave_one_out(ablated: Ablated) -> UnitRelevance:
    """Relevance of each unit: the log-odds of the answer after the whole prompt minus those without the unit."""
    odds = ablated.answer_odds
    return UnitRelevance({"none": odds[ablated.full] - odds[ablated.without]}, 1 + ablated.units)
