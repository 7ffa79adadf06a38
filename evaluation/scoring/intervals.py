"""95 % confidence intervals of means over samples.

* Means of values with a range, such as metrics between 0 and 1: the binomial interval of Clopper and Pearson (1934) at
  an effective number of samples (Korn and Graubard 1998), the number of 0/1 values whose mean would vary as much. Half
  a pseudo-observation at each end of the range keeps rare values that were not drawn from counting as impossible.
* Means of other values, such as areas: the bootstrap-t (Efron 1981), which divides each resampled mean by its standard
  error, taken to be at least LEAST_SPREAD of the observed one. With fewer than FEWEST values it is Student's t.
* Samples that come in clusters, such as those of one template or one article, vary together: errors are those of the
  clusters' totals, and whole clusters are resampled. The effective number of clusters is Kish's (1965): (sum of
  sizes)^2 / sum of squared sizes.

Shapes: N samples, C columns, G clusters (each sample is a cluster unless samples share some), R resamples.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np
import scipy  # its parts are imported when they are first used: scipy.stats takes a while

LEVEL = 0.95
POWER = 0.8
ROUNDING = 1e-6  # share of a range: a nearer mean lies on its bound, since scores are stored in single precision
FEWEST = 10  # fewer values are not resampled
LEAST_SPREAD = 0.25  # of a resample: its standard error is taken to be at least this share of the observed one
FEWEST_CLUSTERS = 10  # fewer say too little about how clusters differ: there is no interval
_CHUNK = 1 << 22  # random numbers drawn at a time

Ends = tuple[np.ndarray, np.ndarray]
Bounds = tuple[float, float] | None  # the range of values; None: they have none
Clusters = Mapping[str, str]  # the name of its cluster by sample id; a sample without one is a cluster by itself
ClusterNumbers = np.ndarray | None  # [N] the number of each sample's cluster; None: no two samples share a cluster
NO_CLUSTERS: Clusters = MappingProxyType({})


@dataclass(frozen=True)
class Resampling:
    """The random draws of intervals and tests: samples with replacement, or whole clusters of samples."""

    resamples: int  # 0: nothing is drawn
    seed: int = 0
    clusters: ClusterNumbers = None  # of the samples from which is drawn

    def within(self, clusters: ClusterNumbers) -> Resampling:
        """A copy for samples of other `clusters` [N]."""
        return replace(self, clusters=clusters)

    def among(self, kept: np.ndarray) -> Resampling:
        """A copy for the samples that are True in `kept` [N]."""
        return self.within(None if self.clusters is None else self.clusters[kept])


def clopper_pearson(successes: np.ndarray | float, n: np.ndarray | float) -> Ends:
    """Exact binomial interval (low, high) of a share, from `successes` among `n` trials; neither need be whole."""
    outside = (1 - LEVEL) / 2
    k = np.asarray(successes, float)
    low = np.where(k > 0, scipy.stats.beta.ppf(outside, np.maximum(k, 1e-300), n - k + 1), 0.0)
    high = np.where(k < n, scipy.stats.beta.ppf(1 - outside, k + 1, np.maximum(n - k, 1e-300)), 1.0)
    return low, high


def mean_intervals(values: np.ndarray, resampling: Resampling, bounds: Bounds = None) -> Ends:
    """Intervals (low [C], high [C]) of the means of finite `values` [N, C].

    `bounds` is the range of the values, if they have one. Ends are NaN if there is no interval: without values, for
    fewer than FEWEST_CLUSTERS clusters and, for values without a range, for a single sample and without resamples.
    """
    sums, sizes = cluster_sums(values, resampling.clusters)
    few_clusters = resampling.clusters is not None and len(sums) < FEWEST_CLUSTERS
    if not len(values) or few_clusters:
        return np.full(values.shape[1], np.nan), np.full(values.shape[1], np.nan)
    if bounds is not None:
        least, most = bounds
        low, high = _share_intervals((values - least) / (most - least), resampling.clusters)
        return least + (most - least) * low, least + (most - least) * high
    if len(sums) < 2 or not resampling.resamples:
        return np.full(values.shape[1], np.nan), np.full(values.shape[1], np.nan)
    if len(sums) >= FEWEST:
        return _bootstrap_t(sums, sizes, resampling)
    return difference_intervals(sums)


def _share_intervals(shares: np.ndarray, clusters: ClusterNumbers) -> Ends:
    """Intervals (low [C], high [C]) of the means of `shares` [N, C] between 0 and 1 (Korn and Graubard 1998).

    A mean on a bound is that of as many equal values as there are samples, or effective clusters.
    """
    sums, sizes = cluster_sums(shares, clusters)
    n, groups = _effective_samples(sizes), len(sums)
    mean = shares.mean(axis=0)
    mean = np.where(mean <= ROUNDING, 0.0, np.where(mean >= 1 - ROUNDING, 1.0, mean))
    squares = ((sums - sizes[:, None] * mean) ** 2).sum(axis=0)
    variance = n * groups / max(1, groups - 1) * squares / sizes.sum() ** 2  # of one sample; n counts all of them
    pseudo_observation = (mean**2 + (1 - mean) ** 2) / 2
    variance = ((n - 1) * variance + pseudo_observation) / (n - 0.5)
    effective = np.clip(n * mean * (1 - mean) / variance, 1, 10 * n)
    if clusters is not None:
        outside = (1 - LEVEL) / 2
        samples, known = scipy.stats.t.ppf(outside, [len(shares) - 1, n - 1])
        effective *= (samples / known) ** 2  # the variance is known from few clusters
    effective = np.where((mean == 0) | (mean == 1), n, effective)
    return clopper_pearson(mean * effective, effective)


def _bootstrap_t(sums: np.ndarray, sizes: np.ndarray, resampling: Resampling) -> Ends:
    """Bootstrap-t intervals (low [C], high [C]) of means, from the `sums` [G, C] of clusters with `sizes` [G].

    Each resampled mean, minus the observed one, is divided by its own standard error; the quantiles of these ratios
    times the observed standard error give the ends. If most values are nearly equal, some resamples miss all others:
    their standard errors, and the ends without LEAST_SPREAD, say nothing.
    """
    clusters = len(sums)
    mean = sums.sum(axis=0) / sizes.sum()
    centred = sums - sizes[:, None] * mean
    error = np.sqrt((centred**2).sum(axis=0) * clusters / (clusters - 1)) / sizes.sum()
    varies = error > 1e-12 * np.abs(mean)
    least_spread = np.where(varies, LEAST_SPREAD * error, 1.0)
    studentised = []
    for weights in resample_counts(clusters, resampling):
        total = weights @ sizes[:, None]
        means = weights @ centred / total  # minus the mean of all samples
        crossed = weights @ (sizes[:, None] * centred)
        squares = weights @ centred**2 - 2 * means * crossed + means**2 * (weights @ sizes[:, None] ** 2)
        spread = np.sqrt(np.maximum(squares, 0) * clusters / (clusters - 1)) / total
        studentised.append(means / np.maximum(spread, least_spread))
    outside = (1 - LEVEL) / 2
    least, most = np.quantile(np.concatenate(studentised), [outside, 1 - outside], axis=0)
    error = np.where(varies, error, 0.0)
    return mean - most * error, mean - least * error


def resample_counts(n: int, resampling: Resampling) -> Iterator[np.ndarray]:
    """The number of times that each of `n` samples or clusters is drawn in each of R resamples with replacement.

    The counts [R, N] come in parts [r, N], so that few are in memory at once.
    """
    rng = np.random.default_rng(resampling.seed)
    for count in chunk_sizes(resampling.resamples, n):
        drawn = rng.integers(0, n, (count, n)) + n * np.arange(count)[:, None]
        yield np.bincount(drawn.ravel(), minlength=count * n).reshape(count, n)


def chunk_sizes(total: int, samples: int) -> list[int]:
    """Parts that sum to `total`, each small enough that part x `samples` random numbers stay within _CHUNK."""
    step = max(1, _CHUNK // max(1, samples))
    return [min(step, total - done) for done in range(0, total, step)]


def difference_intervals(
    differences: np.ndarray, reach: float | np.ndarray | None = None, clusters: ClusterNumbers = None
) -> Ends:
    """Intervals (low [C], high [C]) of the means of paired `differences` [N, C] by Student's t.

    `reach` is the largest size that a difference can have, None if there is no bound; ends are cut to it. Where all
    differences are equal, Student's t gives an interval of no width. With `reach` it is widened: samples that were not
    drawn may differ by anything up to `reach`, and their share is at most the upper end of Clopper and Pearson's
    interval of 0 among N (among the effective number of samples where `clusters` [N] group them). Ends are NaN for a
    single sample, and for fewer than FEWEST_CLUSTERS clusters.
    """
    sums, sizes = cluster_sums(differences, clusters)
    n, columns = sums.shape
    if n < (2 if clusters is None else FEWEST_CLUSTERS):
        return np.full(columns, np.nan), np.full(columns, np.nan)
    mean, error = differences.mean(axis=0), _standard_error(sums, sizes)
    half = scipy.stats.t.ppf((1 + LEVEL) / 2, n - 1) * error
    low, high = mean - half, mean + half
    if reach is not None:
        unseen = clopper_pearson(0, _effective_samples(sizes))[1]
        constant = error <= 1e-12 * np.maximum(1.0, np.abs(mean))
        low = np.where(constant, mean - unseen * (mean + reach), np.maximum(low, -np.asarray(reach)))
        high = np.where(constant, mean + unseen * (reach - mean), np.minimum(high, reach))
    return np.minimum(low, mean), np.maximum(high, mean)  # rounding may put the mean outside


def smallest_difference(differences: np.ndarray, tests: int = 1, clusters: ClusterNumbers = None) -> float:
    """The smallest true mean difference that a two-sided t test of level 0.05 / `tests` detects with POWER.

    `differences` [N, P] are paired differences of P pairs of methods; the median of their standard errors is taken.
    Smaller differences may exist and go undetected with this number of samples. NaN for fewer than three samples or
    clusters.
    """
    sums, sizes = cluster_sums(differences, clusters)
    n = len(sums)
    if n < 3 or not differences.size:
        return float("nan")
    error = float(np.median(_standard_error(sums, sizes)))
    critical = scipy.stats.t.ppf(1 - (1 - LEVEL) / 2 / tests, n - 1)
    return float((critical + scipy.stats.t.ppf(POWER, n - 1)) * error)


def cluster_numbers(clusters: Clusters, samples: Sequence[str]) -> ClusterNumbers:
    """Cluster numbers [N] of `samples`; a sample that `clusters` does not name is a cluster by itself.

    Returns None if no two samples share a cluster.

    >>> cluster_numbers({"a": "one article", "c": "one article"}, ["a", "b", "c"])
    array([1, 0, 1])
    """
    keys = [(True, clusters[name]) if name in clusters else (False, name) for name in samples]
    number = {key: at for at, key in enumerate(sorted(set(keys)))}
    if len(number) == len(keys):
        return None
    return np.array([number[key] for key in keys])


def cluster_sums(values: np.ndarray, clusters: ClusterNumbers) -> tuple[np.ndarray, np.ndarray]:
    """(sums [G, ...] of the `values` [N, ...] in each cluster, cluster sizes [G]).

    `clusters` [N] are cluster numbers; None makes each sample a cluster.

    >>> cluster_sums(np.array([1.0, 2.0, 4.0]), np.array([0, 1, 0]))
    (array([5., 2.]), array([2., 1.]))
    """
    if clusters is None:
        return values, np.ones(len(values))
    _, index = np.unique(clusters, return_inverse=True)  # [N] each sample's row in `sums`
    sums = np.zeros((index.max(initial=-1) + 1, *values.shape[1:]))
    np.add.at(sums, index, values)
    return sums, np.bincount(index, minlength=len(sums)).astype(float)


def _effective_samples(sizes: np.ndarray) -> float:
    """Effective number of samples of clusters with `sizes` [G] (Kish 1965); it is G if all sizes are equal."""
    return float(sizes.sum() ** 2 / (sizes @ sizes))


def _standard_error(sums: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """The jackknife's standard errors [C] (Efron 1982) of C means, which leaves out one of G clusters at a time.

    `sums` [G, C] are the sums of the values over each cluster, `sizes` [G] the numbers of its samples. NaN if G is 1.
    """
    clusters, total = len(sums), sizes.sum()
    centred = sums - sizes[:, None] * (sums.sum(axis=0) / total)
    # How much the mean falls if the cluster is left out.
    falls = centred / np.where(sizes < total, total - sizes, np.nan)[:, None]
    return np.sqrt((clusters - 1) / clusters * (falls**2).sum(axis=0))
