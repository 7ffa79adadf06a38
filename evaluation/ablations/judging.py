"""Measures of how well relevance of units predicts the effect of removing them: LDS, infidelity, drops.

Each is taken against L, the answer's log-probability, and F, its summed logits (see `lrp_core.records.ablated`). Every
method of a sample is judged by the same masks.

Shapes: J judging masks, n units.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.stats import rankdata

from evaluation.scoring.faithfulness.areas import ranks_of

FEWEST = 4  # units that LDS takes
NAN = float("nan")
_DIGITS = 12  # behind the point, of shares of all relevance: sums that differ by less are equal but for rounding


def lds(relevance: np.ndarray, kept: np.ndarray, worth: np.ndarray) -> float:
    """Linear datamodeling score: Spearman's correlation of the relevance [n] that is kept with the `worth` [J].

    `kept` [J, n] are judging masks. 0 where the relevance that is kept is the same in all; NaN where the worth is but
    for the rounding of a forward, and of fewer than FEWEST units.

    >>> kept = np.array([[1, 0, 0, 0], [1, 1, 0, 0], [0, 0, 1, 1]], bool)
    >>> lds(np.array([2.0, 1.0, 0.0, 0.0]), kept, np.array([0.5, 0.9, 0.1]))
    1.0
    """
    if len(relevance) < FEWEST or len(worth) < 2:
        return NAN
    of_worth = _centred(ranks_of(worth))
    if not of_worth.any():
        return NAN
    size = np.abs(relevance).sum()
    predicted = _centred(rankdata(np.round(kept @ (relevance / size), _DIGITS))) if size else np.zeros(len(kept))
    spread = np.sqrt((predicted @ predicted) * (of_worth @ of_worth))
    return float(predicted @ of_worth / spread) if spread else 0.0


def _centred(ranks: np.ndarray) -> np.ndarray:
    return ranks - ranks.mean()


def infidelity(relevance: np.ndarray, kept: np.ndarray, worth: np.ndarray, full: float) -> float:
    """Infidelity (Yeh et al. 2019) after scaling: the mean of (b x - d)^2 over that of d^2.

    x is the relevance of the units that are gone, d the `full` worth minus that of the mask [J], and b >= 0 makes it
    least. 1 where x is 0 throughout; NaN where d is.

    >>> kept = ~np.eye(2, dtype=bool)
    >>> infidelity(np.array([2.0, 4.0]), kept, np.array([9.0, 8.0]), 10.0)
    0.0
    """
    gone = (~kept).astype(np.float64) @ relevance
    drop = full - worth
    whole = float(drop @ drop)
    if not whole:
        return NAN
    size = float(gone @ gone)
    scale = max(0.0, float(gone @ drop) / size) if size else 1.0
    error = scale * gone - drop
    return float(error @ error) / whole


def most_relevant(relevance: np.ndarray, count: int, ties: np.ndarray) -> np.ndarray:
    """The `count` units of the highest relevance [n], as the mask [n] that keeps all others.

    Of equal ones those that come first in the order `ties` [n], a permutation that all methods of a sample share.
    """
    order = sorted(range(len(relevance)), key=lambda unit: (-relevance[unit], ties[unit]))
    kept = np.ones(len(relevance), bool)
    kept[order[:count]] = False
    return kept


def mean_of(values: Sequence[float]) -> float:
    """The mean of the values that are there; NaN of none."""
    known = [value for value in values if np.isfinite(value)]
    return float(np.mean(known)) if known else NAN
