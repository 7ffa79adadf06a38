"""Orders in which heads are removed, from head relevance or at random (Close Look 5.3)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256

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
    half: int | None = None  # the half of the samples that ranks the heads and is not evaluated; None: all do both

    def evaluates(self, half: int) -> bool:
        """True where the samples of a half are evaluated under this order."""
        return self.half != half


def half_of(sample: str, seed: int) -> int:
    """The half of the samples, 0 or 1, that a sample or a cluster of samples belongs to, whatever the others are.

    >>> [half_of(sample, 0) for sample in ("a", "b", "c", "d")]
    [1, 1, 0, 1]
    """
    return sha256(f"halves:{seed}:{sample}".encode()).digest()[0] & 1


def ranked_curves(
    relevance: Mapping[tuple[str, str], np.ndarray],
    orders: Sequence[str] = RANKED_ORDERS,
    halves: np.ndarray | None = None,
) -> list[RemovalOrder]:
    """The curves of head relevance [N, L * H] by (method, pooling), averaged over N samples; ties go by head index.

    With `halves` [N] of the samples also those of the mean over either half, where both have samples. Raises UserError
    for relevance that is not finite.
    """
    parts: list[int | None] = [None]
    if halves is not None and len(set(halves)) == 2:
        parts += [0, 1]
    curves = []
    for (method, pooling), samples in relevance.items():
        for half in parts:
            own = samples if half is None else samples[halves == half]
            mean = np.asarray(own, dtype=np.float64).mean(axis=0)  # [L * H]
            if not np.isfinite(mean).all():
                raise UserError(f"head relevance of {method} ({pooling}) is not finite; recompute its heads")
            keys = {"least_first": mean, "most_first": -mean}
            for order in orders:
                heads = tuple(np.argsort(keys[order], kind="stable").tolist())
                curves.append(RemovalOrder(method, pooling, order, None, heads, half))
    return curves


def random_curves(n_heads: int, runs: int, seed: int) -> list[RemovalOrder]:
    """`runs` random orders of all `n_heads` heads; their seeds are `seed`, `seed` + 1 and so on."""
    orders = []
    for run in range(seed, seed + runs):
        heads = np.random.default_rng(run).permutation(n_heads)
        orders.append(RemovalOrder(RANDOM, NOT_POOLED, RANDOM, run, tuple(heads.tolist())))
    return orders


def removed_at_points(n_heads: int, step: int) -> np.ndarray:
    """The numbers of heads [S] that are removed at the points of a curve, from none to all, `step` apart.

    >>> removed_at_points(8, 3).tolist()
    [0, 3, 6, 8]
    """
    return np.unique([*range(0, n_heads, step), n_heads])


def area(values: np.ndarray, removed: np.ndarray) -> np.ndarray:
    """Areas [...] under curves by trapezoids: `values` [..., S] against the share removed, from `removed` [S]."""
    return np.trapezoid(values, removed / removed[-1])
