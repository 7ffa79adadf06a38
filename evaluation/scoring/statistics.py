"""Comparisons of methods on the same samples: intervals of means and paired tests of all pairs together.

Shapes: N samples, M methods, K metrics, R resamples, G clusters (each sample is one unless samples share some).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import scipy  # its parts are imported when they are first used: scipy.stats takes a while

from closelook.evaluation.scoring.intervals import (
    FEWEST_CLUSTERS,
    LEVEL,
    ROUNDING,
    Resampling,
    chunk_sizes,
    cluster_sums,
    difference_intervals,
    mean_intervals,
    resample_counts,
    smallest_difference,
)

SURE = 0.05  # adjusted p values below this tell two methods apart
FLIPS = 9_999  # random sign patterns; all patterns where these are not more
HITS = ("pg", "pg2")  # metrics by which a sample is hit or not, and random relevance hits with a known probability
FEWEST_TESTED = 6  # fewer samples, or clusters, are not tested


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
    p: np.ndarray  # [M, M, K] of paired tests, adjusted for all pairs, or of hits against chance; 1 on the diagonal
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
        """False if there are fewer than FEWEST_TESTED samples or clusters."""
        return (self.n if self.clusters is None else self.clusters) >= FEWEST_TESTED

    def smallest_by(self, metric: str) -> float | None:
        """The smallest difference that the samples show; None if it is not known, or methods differ by a constant."""
        smallest = None if self.smallest is None else float(self.smallest[self.metrics.index(metric)])
        return smallest if smallest is not None and smallest > ROUNDING else None  # nor if it is NaN

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
    chance: str | None = None,
) -> Comparison | None:
    """Compares M methods by K metrics, from the `values` [N, M, K] of N samples.

    Results are multiplied by `scale`, a number or [K]; by default they are in percent. `shares` (a bool or [K]) says
    which metrics lie between 0 and 1. The values of the method `chance` are expected values of random relevance, not
    scores: others are tested against it by `hits_p` where metrics are HITS, and not by other metrics. Returns None if
    there are no values or no resamples. With fewer than FEWEST_TESTED samples or clusters no difference is tested: all
    p values are 1.
    """
    n, m, k = values.shape
    clusters = resampling.clusters
    if not n or not resampling.resamples or not values.size:
        return None
    values, scale = values.astype(np.float64), np.broadcast_to(np.asarray(scale, float), k)
    low, high = np.empty((m, k)), np.empty((m, k))
    difference_low, difference_high, smallest = np.zeros((m, m, k)), np.zeros((m, m, k)), np.empty(k)
    p = np.ones((m, m, k))
    pairs = m * (m - 1) // 2
    first, second = np.triu_indices(m, 1)
    scored = np.array([name != chance for name in methods])
    for at, share in enumerate(np.broadcast_to(shares, k)):
        scores = values[:, :, at]  # [N, M]
        low[:, at], high[:, at] = mean_intervals(scores, resampling, (0.0, 1.0) if share else None)
        differences = scores[:, first] - scores[:, second]  # [N, pairs]
        ends = difference_intervals(differences, 1.0 if share else None, clusters)
        difference_low[first, second, at], difference_high[first, second, at] = ends
        difference_low[second, first, at], difference_high[second, first, at] = -ends[1], -ends[0]
        smallest[at] = smallest_difference(differences, max(1, pairs), clusters=clusters)
        p_of_pairs = sign_flip_p(cluster_sums(scores[:, scored], clusters)[0], resampling.seed)
        p[:, :, at][np.ix_(scored, scored)] = p_of_pairs
        if not scored.all() and metrics[at] in HITS:
            [floor] = scores[:, ~scored].T
            against = holm_adjusted([hits_p(hits, floor) for hits in scores[:, scored].T])
            p[scored, ~scored, at] = p[~scored, scored, at] = against
    low, high, difference_low, difference_high = (scale * end for end in (low, high, difference_low, difference_high))
    mean = scale * values.mean(axis=0)
    count = None if clusters is None else len(np.unique(clusters))
    of_differences = (difference_low, difference_high)
    compared = Comparison(methods, metrics, n, mean, low, high, *of_differences, p, scale * smallest, count)
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


def sign_flip_p(values: np.ndarray, seed: int) -> np.ndarray:
    """Two-sided p values [M, M] of paired sign-flip tests of `values` [G, M], for every pair of columns.

    Under the null hypothesis, each row's difference of two columns is equally likely to have either sign; all pairs
    change their sign together. The statistic is |sum of d| / sqrt(sum of d^2). p values are adjusted for all pairs by
    the step-down max-T method (Westfall and Young 1993): a pair is compared, in each sign pattern, with the largest
    statistic among the pairs whose observed statistics are not larger than its own. Columns that are equal up to
    rounding have p = 1.

    >>> float(sign_flip_p(np.array([[1.0, 0.0], [3.0, 1.0], [2.0, 1.0]]), seed=0)[0, 1])
    0.25
    """
    first, second = np.triu_indices(values.shape[1], 1)
    differences = values[:, first] - values[:, second]  # [G, pairs]
    size = np.abs(values).sum(axis=0)
    rounding = 1e-6 * np.maximum(size[first], size[second])  # of scores that are stored in single precision
    length = np.sqrt((differences**2).sum(axis=0))
    varies = length > rounding
    scaled = np.where(varies, differences / np.where(varies, length, 1.0), 0.0)
    observed = np.where(varies, np.abs(scaled.sum(axis=0)) - rounding / np.where(varies, length, 1.0), 0.0)
    ascending = np.argsort(observed, kind="stable")
    reached, patterns = np.zeros(len(first)), 0
    for signs in _sign_patterns(len(values), seed):
        statistics = np.abs(signs @ scaled[:, ascending])
        largest = np.maximum.accumulate(statistics, axis=1)  # among the pairs up to this one
        reached += (largest >= observed[ascending]).sum(axis=0)
        patterns += len(signs)
    adjusted = np.empty(len(first))
    adjusted[ascending] = np.maximum.accumulate((reached / patterns)[::-1])[::-1]
    p = np.ones((values.shape[1], values.shape[1]))
    p[first, second] = p[second, first] = adjusted
    return p


def hits_p(hits: np.ndarray, chance: np.ndarray) -> float:
    """Two-sided p value of the number of `hits` [N] of a method, if sample i were hit with the probability `chance`[i].

    The number of hits of random relevance has the Poisson-binomial distribution, so the test is exact. Shares of a hit,
    which a tie of several tokens gives, vary less than hits do: then the p value is too large.

    >>> hits_p(np.array([1.0, 1.0, 1.0]), np.array([0.5, 0.5, 0.1]))
    0.05
    """
    probability = np.ones(1)  # of every number of hits
    for chance_of_some, samples in zip(*np.unique(chance, return_counts=True), strict=True):
        probability = np.convolve(probability, scipy.stats.binom.pmf(np.arange(samples + 1), samples, chance_of_some))
    total = hits.sum()
    at_least = probability[math.ceil(total - ROUNDING) :].sum()
    at_most = probability[: math.floor(total + ROUNDING) + 1].sum()
    return float(min(1.0, 2 * min(at_least, at_most)))


def _sign_patterns(rows: int, seed: int) -> Iterator[np.ndarray]:
    """Signs [S, G] of `rows` differences, in parts: all patterns, or the observed one and FLIPS random ones."""
    if 2**rows <= FLIPS + 1:
        numbers = np.arange(2**rows)[:, None] >> np.arange(rows)
        yield 1.0 - 2.0 * (numbers & 1)
        return
    yield np.ones((1, rows))
    rng = np.random.default_rng([seed, 1])
    for count in chunk_sizes(FLIPS, rows):
        yield 2.0 * rng.integers(0, 2, (count, rows), dtype=np.int8) - 1.0


def holm_adjusted(p: Sequence[float]) -> list[float]:
    """The p values of several tests, adjusted for their number (Holm 1979).

    >>> holm_adjusted([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    values = np.asarray(p, float)
    order = values.argsort()
    factors = np.arange(len(values), 0, -1)
    adjusted = np.empty_like(values)
    adjusted[order] = np.maximum.accumulate(values[order] * factors).clip(max=1)
    return adjusted.tolist()


def stars(p: float) -> str:
    """The usual marks of significance."""
    return "**" if p < 0.01 else "*" if p < 0.05 else ""
