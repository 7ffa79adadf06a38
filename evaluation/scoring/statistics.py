"""Comparisons of methods on the same samples: intervals of means, paired tests and Holm's correction.

Shapes: N samples, M methods, K metrics, R resamples, G clusters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from closelook.evaluation.scoring.intervals import (
    FEWEST_CLUSTERS,
    LEVEL,
    Resampling,
    chunk_sizes,
    cluster_sums,
    difference_intervals,
    mean_intervals,
    resample_counts,
    smallest_difference,
)

SURE = 0.05  # adjusted p values below this tell two methods apart
FLIPS = 10  # sign flips for each resample: Holm's correction needs small p values
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
    difference_low: np.ndarray  # [M, M, K] ends for the row's mean minus the column's
    difference_high: np.ndarray
    p: np.ndarray  # [M, M, K] adjusted by Holm's method; 1 on the diagonal
    #: [K] the smallest difference of two methods that n samples detect with a power of 0.8; None if it is not known, or
    #: if nothing is tested.
    smallest: np.ndarray | None = None
    clusters: int | None = None  # number of clusters of the samples; None if samples share none

    def at(self, method: str, metric: str) -> tuple[int, int] | None:
        """The indices of a method into M and of a metric into K; None if either is not compared."""
        if method not in self.methods or metric not in self.metrics:
            return None
        return self.methods.index(method), self.metrics.index(metric)

    @property
    def is_tested(self) -> bool:
        """False if samples, or their clusters, are too few for any pair to reach p = 0.05 after Holm's correction."""
        pairs = len(self.methods) * (len(self.methods) - 1) // 2
        return (self.n if self.clusters is None else self.clusters) >= np.log2(40 * max(1, pairs))

    def tested(self) -> Comparison:
        """This comparison; a copy whose p values are 1 if its samples or clusters are too few for a test."""
        return self if self.is_tested else replace(self, p=np.ones_like(self.p), smallest=None)

    def beats(self, metric: str, higher_is_better: bool = True) -> np.ndarray:
        """[M, M] bool, True where the row's mean is better than the column's and the adjusted p value is below SURE.

        Raises ValueError for a metric that is not compared.
        """
        k = self.metrics.index(metric)
        mean = self.mean[:, k] if higher_is_better else -self.mean[:, k]
        return (mean[:, None] > mean[None]) & (self.p[:, :, k] < SURE)

    def groups(self, metric: str, higher_is_better: bool = True) -> list[tuple[str, ...]]:
        """The methods in groups, the best group first.

        A group holds the methods that none of the remaining methods beats (see `beats`); within a group, methods are
        ordered by their means. The method of a first group of one is the only one that no other beats; it need not beat
        each of them. Raises ValueError for a metric that is not compared.
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
    resampling: Resampling,
    scale: float | np.ndarray = 100.0,
    shares: bool | np.ndarray = False,
) -> Comparison | None:
    """Compares M methods by K metrics, from the `values` [N, M, K] of N samples.

    Results are multiplied by `scale`, a number or [K]; by default they are in percent. `shares` (a bool or [K]) says
    which metrics lie between 0 and 1. Returns None if there are no values or no resamples. With fewer than
    log2(40 x pairs of methods) samples or clusters no difference is tested: all p values are 1.
    """
    n, m, k = values.shape
    clusters = resampling.clusters
    if not n or not resampling.resamples or not values.size:
        return None
    values, scale = values.astype(np.float64), np.broadcast_to(np.asarray(scale, float), k)
    low, high = np.empty((m, k)), np.empty((m, k))
    difference_low, difference_high, smallest = np.zeros((m, m, k)), np.zeros((m, m, k)), np.empty(k)
    pairs = m * (m - 1) // 2
    first, second = np.triu_indices(m, 1)
    for at, share in enumerate(np.broadcast_to(shares, k)):
        scores = values[:, :, at]  # [N, M]
        low[:, at], high[:, at] = mean_intervals(scores, resampling, (0.0, 1.0) if share else None)
        differences = scores[:, first] - scores[:, second]  # [N, pairs]
        ends = difference_intervals(differences, 1.0 if share else None, clusters)
        difference_low[first, second, at], difference_high[first, second, at] = ends
        difference_low[second, first, at], difference_high[second, first, at] = -ends[1], -ends[0]
        smallest[at] = smallest_difference(differences, max(1, pairs), clusters=clusters)
    sums, _ = cluster_sums(values, clusters)  # the differences of a cluster change their sign together
    flips = max(FLIPS * resampling.resamples, 100 * pairs)  # Holm multiplies p by up to `pairs`
    p = sign_flip_p(sums, flips, resampling.seed)
    low, high, difference_low, difference_high = (scale * end for end in (low, high, difference_low, difference_high))
    mean = scale * values.mean(axis=0)
    count = None if clusters is None else len(np.unique(clusters))
    of_differences = (difference_low, difference_high)
    compared = Comparison(methods, metrics, n, mean, low, high, *of_differences, holm(p), scale * smallest, count)
    return compared.tested()


def bootstrap_means(values: np.ndarray, resampling: Resampling) -> np.ndarray:
    """Means [R, C] of `values` [N, C] over samples, or whole clusters, drawn with replacement.

    R is 0 if there are fewer than FEWEST_CLUSTERS clusters.
    """
    sums, sizes = cluster_sums(values, resampling.clusters)
    if resampling.clusters is not None and len(sums) < FEWEST_CLUSTERS:
        resampling = replace(resampling, resamples=0)
    parts = [weights @ sums / (weights @ sizes)[:, None] for weights in resample_counts(len(sums), resampling)]
    return np.concatenate([np.empty((0, values.shape[1])), *parts])


def interval(draws: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """95 % percentile interval (low [...], high [...]) over the resamples in `draws` [R, ...]."""
    outside = (1 - LEVEL) / 2
    low, high = np.quantile(draws, [outside, 1 - outside], axis=0)
    return low, high


def finite_interval(draws: np.ndarray) -> tuple[float, float]:
    """Percentile interval over the finite values in `draws` [R]; NaN if there are none.

    A resample that holds a single sample over and over has no correlation, so that its value is NaN.
    """
    usable = draws[np.isfinite(draws)]
    if not len(usable):
        return np.nan, np.nan
    low, high = interval(usable)
    return float(low), float(high)


def sign_flip_p(values: np.ndarray, flips: int, seed: int) -> np.ndarray:
    """Two-sided p values [M, M, K] of a sign-flip permutation test of `values` [N, M, K], for every pair of methods.

    Under the null hypothesis, each sample's difference is equally likely to have either sign. p is the share of sign
    patterns whose sum of differences is at least as far from zero as the observed sum; the observed pattern counts.
    """
    rng = np.random.default_rng([seed, 1])
    samples, shape = len(values), values.shape[1:]
    flat = values.reshape(samples, -1).astype(np.float64)
    total = flat.sum(axis=0).reshape(shape)
    size = np.abs(flat).sum(axis=0).reshape(shape)
    rounding = 1e-6 * np.maximum(size[:, None], size[None])  # of scores that are stored in single precision
    observed = np.abs(total[:, None] - total[None]) - rounding
    extreme = np.ones_like(observed)
    for count in chunk_sizes(flips, max(samples, extreme.size)):
        signs = 2 * rng.integers(0, 2, (count, samples), dtype=np.int8).astype(np.float64) - 1
        sums = (signs @ flat).reshape(count, *shape)  # the sum of differences is the difference of sums
        extreme += (np.abs(sums[:, :, None] - sums[:, None]) >= observed).sum(axis=0)
    return extreme / (flips + 1)


def holm(p: np.ndarray) -> np.ndarray:
    """Symmetric p values [M, M, K] adjusted for the M (M - 1) / 2 pairs of methods, in each column of K (Holm 1979)."""
    adjusted = np.ones_like(p)
    upper = np.triu_indices(len(p), 1)
    pairs = p[upper]  # [pairs, K]
    if not len(pairs):
        return adjusted
    adjusted[upper] = adjusted[upper[::-1]] = _holm_by_column(pairs)
    return adjusted


def holm_adjusted(p: Sequence[float]) -> list[float]:
    """The p values of several tests, adjusted for their number (Holm 1979).

    >>> holm_adjusted([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    return _holm_by_column(np.asarray(p, float)[:, None])[:, 0].tolist()


def _holm_by_column(p: np.ndarray) -> np.ndarray:
    """`p` [P, K] adjusted for the P tests in each column (Holm 1979)."""
    order = p.argsort(axis=0)
    factors = np.arange(len(p), 0, -1)[:, None]
    ascending = np.take_along_axis(p, order, axis=0)
    adjusted = np.maximum.accumulate(ascending * factors, axis=0).clip(max=1)
    unsorted = np.empty_like(p)
    np.put_along_axis(unsorted, order, adjusted, axis=0)
    return unsorted


def stars(p: float) -> str:
    """The usual marks of significance."""
    return "**" if p < 0.01 else "*" if p < 0.05 else ""
