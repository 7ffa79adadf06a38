"""Orders in which heads are removed, from head relevance or at random (Close Look 5.3)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256

import numpy as np

from closelook.lrp_core.records.types import UserError

RANKED_ORDERS = ("least_first", "most_first")
RANDOM = "random"  # both the order and the method of a random curve
ACTIVATION = "activation"  # a ranking of neurons by their largest activation over positions
NOT_POOLED = "none"  # the pooling of orders that come from no relevance


@dataclass(frozen=True)
class RemovalOrder:
    """An order in which the heads of a model are removed. Head h of layer l has the number l * H + h."""

    method: str
    pooling: str
    order: str  # least_first | most_first | random
    seed: int | None  # of a random order
    heads: tuple[int, ...]  # [L * H], in the order of their removal
    #: The half of the samples (0 or 1) that ranks the heads; the other half is evaluated. None: all samples do both.
    half: int | None = None

    def evaluates(self, half: int) -> bool:
        """True if the samples of `half` are evaluated under this order."""
        return self.half != half


def half_of(sample: str, seed: int) -> int:
    """The half, 0 or 1, to which a sample or a cluster of samples belongs: a hash of its name, whatever the others are.

    >>> [half_of(sample, 0) for sample in ("a", "b", "c", "d")]
    [1, 1, 0, 1]
    """
    return sha256(f"halves:{seed}:{sample}".encode()).digest()[0] & 1


def ranked_curves(
    relevance: Mapping[tuple[str, str], np.ndarray],
    orders: Sequence[str] = RANKED_ORDERS,
    halves: np.ndarray | None = None,
) -> list[RemovalOrder]:
    """Removal orders by the mean relevance of heads over samples; heads of equal relevance go by their number.

    `relevance` maps (method, pooling) to head relevance [N, L * H]. With `halves` [N], the half of each sample, there
    are also the orders of the mean over either half, if both halves have samples. Raises UserError for relevance that
    is not finite.
    """
    parts: list[int | None] = [None]
    if halves is not None and len(set(halves)) == 2:
        parts += [0, 1]
    curves = []
    for (method, pooling), samples in relevance.items():
        for half in parts:
            ranking = samples if half is None else samples[halves == half]
            mean = np.asarray(ranking, dtype=np.float64).mean(axis=0)  # [L * H]
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
    """The numbers of removed heads [S] at the points of a curve: from none to all, in steps of `step`.

    >>> removed_at_points(8, 3).tolist()
    [0, 3, 6, 8]
    """
    return np.unique([*range(0, n_heads, step), n_heads])


def area(values: np.ndarray, removed: np.ndarray) -> np.ndarray:
    """Areas [...] under curves by the trapezoidal rule: `values` [..., S] against the removed share.

    `removed` [S] counts the removed heads or tokens at each point; the last point removes all of them.
    """
    return np.trapezoid(values, removed / removed[-1])
