"""Orders in which heads are removed, from head relevance or at random (Close Look 5.3)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from lrp_core.types import UserError

RANKED_ORDERS = ("least_first", "most_first")
RANDOM = "random"  # both the order and the method of a random curve
ACTIVATION = "activation"  # a ranking of neurons by the largest over positions
NOT_POOLED = "none"  # the pooling of what stems from no relevance


@dataclass(frozen=True)
class RemovalOrder:
    """An order in which the heads of a model are removed; a head is layer * H + its index."""

    method: str
    pooling: str
    order: str  # least_first | most_first | random
    seed: int | None  # of a random order
    heads: tuple[int, ...]  # [L * H], first removed first


def ranked_curves(
    relevance: Mapping[tuple[str, str], np.ndarray], orders: Sequence[str] = RANKED_ORDERS
) -> list[RemovalOrder]:
    """The curves of head relevance [N, L * H] by (method, pooling), averaged over N samples; ties go by head index.

    Raises UserError for relevance that is not finite.
    """
    curves = []
    for (method, pooling), samples in relevance.items():
        mean = np.asarray(samples, dtype=np.float64).mean(axis=0)  # [L * H]
        if not np.isfinite(mean).all():
            raise UserError(f"head relevance of {method} ({pooling}) is not finite; recompute its heads")
        keys = {"least_first": mean, "most_first": -mean}
        for order in orders:
            heads = tuple(np.argsort(keys[order], kind="stable").tolist())
            curves.append(RemovalOrder(method, pooling, order, None, heads))
    return curves


def random_curves(n_heads: int, runs: int, seed: int) -> list[RemovalOrder]:
    """`runs` random orders of all `n_heads` heads; their seeds are `seed`, `seed` + 1 and so on."""
    orders = []
    for run in range(seed, seed + runs):
        heads = np.random.default_rng(run).permutation(n_heads)
        orders.append(RemovalOrder(RANDOM, NOT_POOLED, RANDOM, run, tuple(heads.tolist())))
    return orders


def area(values: np.ndarray, removed: np.ndarray) -> np.ndarray:
    """Areas [...] under curves by trapezoids: `values` [..., S] against the share removed, from `removed` [S]."""
    return np.trapezoid(values, removed / removed[-1])
