"""Measures of how well relevance of units predicts the effect of removing them: LDS, infidelity, drops.

Each is measured against L, the answer's log-probability, and F, the sum of its logits (see `lrp_core.records.ablated`).
All methods are judged by the same masks of a sample. The *worth* of a mask is L or F after the prompt that it leaves.

Shapes: J judging masks, n units.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.stats import rankdata

from evaluation.scoring.faithfulness.areas import ranks_of

FEWEST = 4  # units; LDS is not defined for fewer
NAN = float("nan")
_DIGITS = 12  # decimals of sums of relevance, as shares of all relevance: smaller differences are rounding errors


def lds(relevance: np.ndarray, kept: np.ndarray, worth: np.ndarray) -> float:
    """Linear datamodeling score: Spearman's correlation, over masks, of the kept relevance and the worth.

    The kept relevance of a mask is the sum of `relevance` [n] over the units that it keeps; `kept` [J, n] are the
    judging masks, `worth` [J] their worths. 0 if the kept relevance is the same for all masks. NaN if the worth is the
    same for all up to rounding, and for fewer than FEWEST units or two masks.

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
    """`ranks` [J] minus their mean."""
    return ranks - ranks.mean()


def infidelity(relevance: np.ndarray, kept: np.ndarray, worth: np.ndarray, full: float) -> float:
    """Infidelity (Yeh et al. 2019) after scaling: sum of (b x - d)^2 over masks, divided by the sum of d^2.

    x [J] is the sum of `relevance` [n] over the units that a mask removes, d [J] the worth of the `full` prompt minus
    the mask's `worth`; `kept` [J, n] are the masks. The factor b >= 0 is the one that makes the error smallest. 1 if x
    is 0 for all masks; NaN if d is.

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
    """The mask [n] that removes the `count` units of largest `relevance` [n] and keeps all others.

    Units of equal relevance are removed in the order of `ties` [n], a permutation that all methods of a sample share.
    """
    order = sorted(range(len(relevance)), key=lambda unit: (-relevance[unit], ties[unit]))
    kept = np.ones(len(relevance), bool)
    kept[order[:count]] = False
    return kept


def mean_of(values: Sequence[float]) -> float:
    """The mean of the finite `values`; NaN if there are none."""
    known = [value for value in values if np.isfinite(value)]
    return float(np.mean(known)) if known else NAN
