"""Relevance of units: a Lasso fitted to ablations, and sums of the relevance of tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from lrp_core.records.ablated import Ablated, UnitRelevance
from lrp_core.records.types import UserError

ALPHA, TOLERANCE, _ITERATIONS = 0.01, 1e-10, 1_000_000  # of ContextCite's Lasso

#: How the relevance of a unit is made of that of its tokens.
POOLS: Mapping[str, Callable[[np.ndarray], float]] = {"sum": np.sum, "mean": np.mean, "max": np.max}


def of_units(tokens: np.ndarray, units: np.ndarray, count: int, pool: str = "sum") -> np.ndarray:
    """The relevance of units [n] from that of tokens [T], whose units [T] are numbers, negative of none.

    >>> of_units(np.array([1.0, 2.0, 4.0]), np.array([0, 0, -1]), 1).tolist()
    [3.0]
    """
    return np.array([POOLS[pool](tokens[units == unit]) for unit in range(count)], float)


def contextcite(ablated: Ablated, *, budget: int) -> UnitRelevance:
    """Weights of the Lasso of y on the masks that methods are fitted to, the first `budget` (Cohen-Wang et al. 2024).

    It is fitted to y divided by the answer's tokens on standardised masks, and its weights are scaled back. Raises
    UserError where scikit-learn is not installed, and for ablations without masks to fit to.
    """
    try:
        from sklearn.linear_model import Lasso
        from sklearn.preprocessing import StandardScaler
    except ImportError:
        needs = "contextcite fits a Lasso by scikit-learn, which is not installed: pip install 'closelook[run]'"
        raise UserError(needs) from None
    masks = ablated.fit[:budget]
    if not len(masks):
        raise UserError("contextcite: the ablations have no masks to fit it to")
    scaler = StandardScaler()
    kept = scaler.fit_transform(ablated.kept[masks].astype(np.float64))
    lasso = Lasso(alpha=ALPHA, tol=TOLERANCE, max_iter=_ITERATIONS)
    lasso.fit(kept, ablated.answer_odds[masks] / ablated.answer_tokens)
    weights = lasso.coef_ / scaler.scale_ * ablated.answer_tokens
    return UnitRelevance({"none": weights}, len(masks))
