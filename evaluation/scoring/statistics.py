"""The certainty of means: intervals over samples, and paired tests between methods on the same samples.

Shapes: N samples, M methods, K metrics, R resamples, G clusters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from evaluation.scoring.intervals import (
    FEWEST_CLUSTERS,
    cluster_sums,
    difference_intervals,
    even_parts,
    mean_intervals,
    resampled,
    smallest_difference,
)

LEVEL = 0.95
SURE = 0.05  # p of a difference that is told as one
FLIPS = 10  # random signs for each resample: Holm needs small p values
TEST = (
    "two-sided paired sign-flip permutation test on the per-sample differences, "
    "p values adjusted by Holm's method over the pairs of methods of one model, task and metric"
)


@dataclass(frozen=True)
class Comparison:
    """Methods on the same samples of one model, task and precision."""

    methods: tuple[str, ...]
    metrics: tuple[str, ...]
    n: int
    mean: np.ndarray  # [M, K]
    low: np.ndarray  # [M, K] ends of the 95 % interval
    high: np.ndarray
    difference_low: np.ndarray  # [M, M, K] the same for row's mean minus column's
    difference_high: np.ndarray
    p: np.ndarray  # [M, M, K] adjusted; 1 on the diagonal
    #: [K] the smallest difference of two methods that n samples tell with a power of 0.8; None where nobody knows.
    smallest: np.ndarray | None = None
    clusters: int | None = None  # so many that the samples come in; None where each is its own

    def at(self, method: str, metric: str) -> tuple[int, int] | None:
        """The indices of a method into M and of a metric into K; None for one that is not compared."""
        if method not in self.methods or metric not in self.metrics:
            return None
        return self.methods.index(method), self.metrics.index(metric)

    @property
    def is_tested(self) -> bool:
        """False where the samples come in too few clusters for any test."""
        pairs = len(self.methods) * (len(self.methods) - 1) // 2
        return self.clusters is None or self.clusters >= np.log2(40 * max(1, pairs))

    def tested(self) -> Comparison:
        """This comparison, of too few clusters without any test: all p are 1."""
        return self if self.is_tested else replace(self, p=np.ones_like(self.p))

    def beats(self, metric: str, higher_is_better: bool = True) -> np.ndarray:
        """[M, M], True where the row's method is better than the column's and the test tells them apart."""
        k = self.metrics.index(metric)
        mean = self.mean[:, k] if higher_is_better else -self.mean[:, k]
        return (mean[:, None] > mean[None]) & (self.p[:, :, k] < SURE)

    def groups(self, metric: str, higher_is_better: bool = True) -> list[tuple[str, ...]]:
        """The methods in groups, the best first: a group are those that no other of the methods left beats.

        One beats another where its mean is better and the test tells them apart. A first group of a single method is a
        winner. Raises ValueError for a metric that is not compared.

        >>> values = np.random.default_rng(0).normal([[[1.0], [0.0], [0.0]]], 1.0, (60, 3, 1))
        >>> compare(values, ("a", "b", "c"), ("score",), 500, 0).groups("score")
        [('a',), ('b', 'c')]
        """
        beats, k = self.beats(metric, higher_is_better), self.metrics.index(metric)
        mean = self.mean[:, k] if higher_is_better else -self.mean[:, k]
        left, groups = list(range(len(self.methods))), []
        while left:
            unbeaten = [at for at in left if not beats[left, at].any()]
            groups.append(tuple(self.methods[at] for at in sorted(unbeaten, key=lambda at: -mean[at])))
            left = [at for at in left if at not in unbeaten]
        return groups


def compare(
    values: np.ndarray,
    methods: tuple[str, ...],
    metrics: tuple[str, ...],
    resamples: int,
    seed: int,
    scale: float | np.ndarray = 100.0,
    shares: bool | np.ndarray = False,
    clusters: np.ndarray | None = None,
) -> Comparison | None:
    """The comparison of M methods by K metrics, from the `values` [N, M, K] of N samples.

    They are told times `scale`, one number or [K]; by default in percent. `shares` tells whether values lie between 0
    and 1, of all metrics or of each [K]; `clusters` [N] are numbers of the samples' clusters. None when there is
    nothing to resample. Of fewer clusters than log2(40 x pairs of methods) no difference is tested: all p are 1.
    """
    n, m, k = values.shape
    if not n or not resamples or not values.size:
        return None
    values, scale = values.astype(np.float64), np.broadcast_to(np.asarray(scale, float), k)
    low, high = np.empty((m, k)), np.empty((m, k))
    difference_low, difference_high, smallest = np.zeros((m, m, k)), np.zeros((m, m, k)), np.empty(k)
    pairs = m * (m - 1) // 2
    first, second = np.triu_indices(m, 1)
    for at, share in enumerate(np.broadcast_to(shares, k)):
        own = values[:, :, at]  # [N, M]
        low[:, at], high[:, at] = mean_intervals(own, resamples, seed, (0.0, 1.0) if share else None, clusters)
        differences = own[:, first] - own[:, second]  # [N, pairs]
        ends = difference_intervals(differences, 1.0 if share else None, clusters)
        difference_low[first, second, at], difference_high[first, second, at] = ends
        difference_low[second, first, at], difference_high[second, first, at] = -ends[1], -ends[0]
        smallest[at] = smallest_difference(differences, max(1, pairs), clusters=clusters)
    p = sign_flip_p(cluster_sums(values, clusters)[0], FLIPS * resamples, seed)  # a cluster's signs flip together
    low, high, difference_low, difference_high = (scale * end for end in (low, high, difference_low, difference_high))
    mean = scale * values.mean(axis=0)
    count = None if clusters is None else len(np.unique(clusters))
    of_differences = (difference_low, difference_high)
    compared = Comparison(methods, metrics, n, mean, low, high, *of_differences, holm(p), scale * smallest, count)
    return compared.tested()


def bootstrap_means(values: np.ndarray, resamples: int, seed: int, clusters: np.ndarray | None = None) -> np.ndarray:
    """Means [R, C] of `values` [N, C] over samples drawn with replacement, or over whole clusters, if there are any.

    None are drawn, R = 0, of fewer than FEWEST_CLUSTERS.
    """
    sums, sizes = cluster_sums(values, clusters)
    if clusters is not None and len(sums) < FEWEST_CLUSTERS:
        resamples = 0
    parts = [weights @ sums / (weights @ sizes)[:, None] for weights in resampled(len(sums), resamples, seed)]
    return np.concatenate([np.empty((0, values.shape[1])), *parts])


def interval(resampled: np.ndarray, level: float = LEVEL) -> tuple[np.ndarray, np.ndarray]:
    """(low, high) of the percentile interval over the first axis."""
    outside = (1 - level) / 2
    low, high = np.quantile(resampled, [outside, 1 - outside], axis=0)
    return low, high


def finite_interval(resampled: np.ndarray) -> tuple[float, float]:
    """The interval over resamples that have a value: one that drew a single sample over and over has no correlation."""
    usable = resampled[np.isfinite(resampled)]
    if not len(usable):
        return np.nan, np.nan
    low, high = interval(usable)
    return float(low), float(high)


def sign_flip_p(values: np.ndarray, flips: int, seed: int) -> np.ndarray:
    """p values [M, M, K] of `values` [N, M, K] for every pair of methods.

    Under the null hypothesis a difference is as likely to have either sign; p is the share of random signs whose
    sum is at least as far from zero as the observed one, that one included.
    """
    rng = np.random.default_rng([seed, 1])
    samples, shape = len(values), values.shape[1:]
    flat = values.reshape(samples, -1).astype(np.float64)
    total, size = (numbers.sum(axis=0).reshape(shape) for numbers in (flat, np.abs(flat)))
    rounding = 1e-6 * np.maximum(size[:, None], size[None])  # of scores in single precision: it is no evidence
    observed = np.abs(total[:, None] - total[None]) - rounding
    extreme = np.ones_like(observed)
    for count in even_parts(flips, samples):
        signs = 2 * rng.integers(0, 2, (count, samples), dtype=np.int8).astype(np.float64) - 1
        sums = (signs @ flat).reshape(count, *shape)  # the sum of differences is the difference of sums
        extreme += (np.abs(sums[:, :, None] - sums[:, None]) >= observed).sum(axis=0)
    return extreme / (flips + 1)


def holm(p: np.ndarray) -> np.ndarray:
    """`p` [M, M, K], symmetric, adjusted for the M (M - 1) / 2 pairs of each of K (Holm 1979)."""
    adjusted = np.ones_like(p)
    upper = np.triu_indices(len(p), 1)
    pairs = p[upper]  # [pairs, K]
    if not len(pairs):
        return adjusted
    adjusted[upper] = adjusted[upper[::-1]] = _stepped(pairs)
    return adjusted


def holm_adjusted(p: Sequence[float]) -> list[float]:
    """p values of several tests, adjusted for their number (Holm 1979)."""
    return _stepped(np.asarray(p, float)[:, None])[:, 0].tolist()


def _stepped(p: np.ndarray) -> np.ndarray:
    """`p` [P, K] adjusted for the P tests of each of K."""
    order = p.argsort(axis=0)
    factors = np.arange(len(p), 0, -1)[:, None]
    stepped = np.maximum.accumulate(np.take_along_axis(p, order, axis=0) * factors, axis=0).clip(max=1)
    unsorted = np.empty_like(p)
    np.put_along_axis(unsorted, order, stepped, axis=0)
    return unsorted


def stars(p: float) -> str:
    """The usual marks: * below 0.05, ** below 0.01."""
    return "**" if p < 0.01 else "*" if p < 0.05 else ""
