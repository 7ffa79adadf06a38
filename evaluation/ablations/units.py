"""Relevance of units: of sources from their ablations, by ContextCite, and of tokens, pooled. Imports NumPy.

Shapes: n units, T tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from closelook.lrp_core.records.ablated import Ablated, UnitRelevance
from closelook.lrp_core.records.types import UserError

ALPHA, TOLERANCE, _ITERATIONS = 0.01, 1e-10, 1_000_000  # of ContextCite's Lasso

#: The functions that make the relevance of a unit from that of its tokens, by name.
POOLS: Mapping[str, Callable[[np.ndarray], float]] = {"sum": np.sum, "mean": np.mean, "max": np.max}


def of_units(tokens: np.ndarray, units: np.ndarray, count: int, pool: str = "sum") -> np.ndarray:
    """The relevance [n] of `count` units from that of `tokens` [T]; `units` [T] are their units, negative for none."""
    return np.array([POOLS[pool](tokens[units == unit]) for unit in range(count)], float)


def contextcite(ablated: Ablated, *, budget: int) -> UnitRelevance:
    """The weights of a Lasso that predicts the answer's log-odds from which units stay (Cohen-Wang et al. 2024).

    It is fitted to the first `budget` masks of `ablated.fit`: to the log-odds divided by the answer's number of tokens,
    on standardised masks; the weights are scaled back. Raises UserError if scikit-learn is not installed, and for
    ablations without masks to fit to.
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
