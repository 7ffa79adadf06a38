"""95 % intervals of means over samples, one way for each kind of values.

* Values of which half or more lie on a bound of their range, shares among them: the exact binomial interval of Clopper
  and Pearson (1934) with the sum of the rescaled values as its number of successes, which need not be whole. A
  bootstrap of such values covers too little, and its interval of 30 hits among 30 has no width.
* Other values: the bootstrap-t (Efron 1981), whose resampled means are divided by their own standard errors; of fewer
  than FEWEST values Student's t, since resamples of so few are often all but equal.
* Samples that come in clusters (of one template, of one article): whole clusters are resampled. The mean over samples
  is then a ratio, of the sum of clusters' sums to that of their sizes, which are resampled together. Student's t takes
  the jackknife's standard error, and shares are counted among the samples that would tell as much if each stood alone
  and a cluster's samples were all alike (Kish 1965): (sum of sizes)^2 / sum of squared sizes.

Shapes: N samples, C columns, G clusters (samples, where none share one), R resamples.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from scipy import stats

LEVEL = 0.95
ROUNDING = 1e-6  # of a range: values so near a bound are on it, since scores are stored in single precision
FEWEST = 10  # values that are resampled
FEWEST_CLUSTERS = 10  # fewer tell nothing of how clusters differ: there is no interval
_CHUNK = 1 << 22  # random numbers at a time

Ends = tuple[np.ndarray, np.ndarray]


def clopper_pearson(successes: np.ndarray | float, n: float, level: float = LEVEL) -> Ends:
    """(low, high) of a share of which `successes` are counted among `n`, neither necessarily whole.

    >>> low, high = clopper_pearson(30, 30)
    >>> print(f"{low:.3f} {high:.3f}")
    0.884 1.000
    """
    outside = (1 - level) / 2
    k = np.asarray(successes, float)
    low = np.where(k > 0, stats.beta.ppf(outside, np.maximum(k, 1e-300), n - k + 1), 0.0)
    high = np.where(k < n, stats.beta.ppf(1 - outside, k + 1, np.maximum(n - k, 1e-300)), 1.0)
    return low, high


def mean_intervals(
    values: np.ndarray,
    resamples: int,
    seed: int,
    bounds: tuple[float, float] | None = None,
    clusters: np.ndarray | None = None,
) -> Ends:
    """(low, high) [C] of the means of finite `values` [N, C] that lie within `bounds`, if there are any.

    `clusters` [N] are the numbers of the samples' clusters. Ends are NaN where there is no interval: of a single sample
    without bounds, without `resamples` where one has to resample, and of fewer than FEWEST_CLUSTERS clusters.
    """
    columns = values.shape[1]
    low, high = np.full(columns, np.nan), np.full(columns, np.nan)
    on_bound = np.zeros(columns, bool)
    if bounds is not None and len(values):
        near = ROUNDING * (bounds[1] - bounds[0])
        on_bound = ((values <= bounds[0] + near) | (values >= bounds[1] - near)).mean(axis=0) >= 0.5
    sums, sizes = cluster_sums(values, clusters)
    if clusters is not None and len(sums) < FEWEST_CLUSTERS:
        return low, high
    if bounds is not None and len(sums):
        least, most = bounds
        n = _counted(sizes)
        successes = n * (values[:, on_bound].mean(axis=0) - least) / (most - least)
        ends = clopper_pearson(np.clip(successes, 0, n), n)
        low[on_bound], high[on_bound] = (least + (most - least) * end for end in ends)
    if len(sums) > 1 and resamples and not on_bound.all():
        others = sums[:, ~on_bound]
        if len(sums) >= FEWEST:
            ends = _bootstrap_t(others, sizes, resamples, seed)
        else:
            ends = difference_intervals(others)
        low[~on_bound], high[~on_bound] = ends
        if bounds is not None:
            low, high = np.clip(low, *bounds), np.clip(high, *bounds)
    return low, high


def _bootstrap_t(sums: np.ndarray, sizes: np.ndarray, resamples: int, seed: int) -> Ends:
    """The interval of the mean from `sums` [G, C] of clusters of `sizes` [G].

    Resamples of equal values, which are many of small samples alone, have no standard error and do not count.
    """
    clusters = len(sums)
    mean = sums.sum(axis=0) / sizes.sum()
    centred = sums - sizes[:, None] * mean
    studentised = []
    for weights in resampled(clusters, resamples, seed):
        total = weights @ sizes[:, None]
        means = weights @ centred / total  # less the mean of all samples
        crossed = weights @ (sizes[:, None] * centred)
        squares = weights @ centred**2 - 2 * means * crossed + means**2 * (weights @ sizes[:, None] ** 2)
        spread = np.sqrt(np.maximum(squares, 0) * clusters / (clusters - 1)) / total
        varies = spread > 1e-9 * np.abs(centred).max(axis=0)
        studentised.append(np.divide(means, spread, out=np.full_like(means, np.nan), where=varies))
    outside = (1 - LEVEL) / 2
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of columns that do not vary at all
        least, most = np.nanquantile(np.concatenate(studentised), [outside, 1 - outside], axis=0)
    error = np.sqrt((centred**2).sum(axis=0) * clusters / (clusters - 1)) / sizes.sum()
    with np.errstate(invalid="ignore"):
        ends = mean - most * error, mean - least * error
    varies = error > 1e-12 * np.abs(mean)
    return np.where(varies, ends[0], mean), np.where(varies, ends[1], mean)


def resampled(n: int, resamples: int, seed: int) -> Iterator[np.ndarray]:
    """Counts of `n` samples in each of `resamples` draws with replacement: parts [r, N] of [R, N]."""
    rng = np.random.default_rng(seed)
    for count in even_parts(resamples, n):
        drawn = rng.integers(0, n, (count, n)) + n * np.arange(count)[:, None]
        yield np.bincount(drawn.ravel(), minlength=count * n).reshape(count, n)


def even_parts(total: int, samples: int) -> list[int]:
    """`total` cut so that count x samples stays within _CHUNK."""
    step = max(1, _CHUNK // max(1, samples))
    return [min(step, total - done) for done in range(0, total, step)]


def difference_intervals(
    differences: np.ndarray, reach: float | np.ndarray | None = None, clusters: np.ndarray | None = None
) -> Ends:
    """(low, high) [C] of the means of paired `differences` [N, C] by Student's t.

    Differences of bounded values lie within `reach` of zero. Where all are equal, a share of others that the samples
    would miss once in forty could lie anywhere there (Clopper and Pearson's interval of 0 among N): t alone would say
    that nothing is uncertain. NaN as of :func:`mean_intervals`.
    """
    sums, sizes = cluster_sums(differences, clusters)
    n, columns = sums.shape
    if n < (2 if clusters is None else FEWEST_CLUSTERS):
        return np.full(columns, np.nan), np.full(columns, np.nan)
    mean, error = differences.mean(axis=0), _standard_error(sums, sizes)
    half = stats.t.ppf((1 + LEVEL) / 2, n - 1) * error
    low, high = mean - half, mean + half
    if reach is not None:
        unseen = clopper_pearson(0, _counted(sizes))[1]
        constant = error <= 1e-12 * np.maximum(1.0, np.abs(mean))
        low = np.where(constant, mean - unseen * (mean + reach), np.maximum(low, -np.asarray(reach)))
        high = np.where(constant, mean + unseen * (reach - mean), np.minimum(high, reach))
    return np.minimum(low, mean), np.maximum(high, mean)  # which rounding may part


def smallest_difference(
    differences: np.ndarray, tests: int = 1, power: float = 0.8, clusters: np.ndarray | None = None
) -> float:
    """The smallest true mean difference that a two-sided t test of level 0.05 / `tests` finds with this power.

    `differences` [N, P] are the paired ones of P pairs, whose median standard deviation counts. NaN of fewer than three
    samples. It is what a table's number of samples can tell; smaller differences may be there and go unseen.
    """
    sums, sizes = cluster_sums(differences, clusters)
    n = len(sums)
    if n < 3 or not differences.size:
        return float("nan")
    error = float(np.median(_standard_error(sums, sizes)))
    critical = stats.t.ppf(1 - (1 - LEVEL) / 2 / tests, n - 1)
    return float((critical + stats.t.ppf(power, n - 1)) * error)


def numbered(clusters: Mapping[str, str], samples: Sequence[str]) -> np.ndarray | None:
    """Numbers [N] of the clusters of `samples`, each without one its own; None where no sample shares any.

    >>> numbered({"a": "one article", "c": "one article"}, ["a", "b", "c"])
    array([1, 0, 1])
    """
    names = [(True, clusters[name]) if name in clusters else (False, name) for name in samples]
    order = {name: at for at, name in enumerate(sorted(set(names)))}
    if len(order) == len(names):
        return None
    return np.array([order[name] for name in names])


def cluster_sums(values: np.ndarray, clusters: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    """(sums [G, ...] of the `values` [N, ...] of each cluster, sizes [G]); each sample is one where `clusters` is None.

    >>> cluster_sums(np.array([1.0, 2.0, 4.0]), np.array([0, 1, 0]))
    (array([5., 2.]), array([2., 1.]))
    """
    if clusters is None:
        return values, np.ones(len(values))
    _, of = np.unique(clusters, return_inverse=True)
    sums = np.zeros((of.max(initial=-1) + 1, *values.shape[1:]))
    np.add.at(sums, of, values)
    return sums, np.bincount(of, minlength=len(sums)).astype(float)


def _counted(sizes: np.ndarray) -> float:
    """As many samples as clusters of `sizes` [G] tell as much as: G where all are of one size."""
    return float(sizes.sum() ** 2 / (sizes @ sizes))


def _standard_error(sums: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """The jackknife's [C] (Efron 1982) of the mean from `sums` [G, C] of clusters of `sizes` [G]; NaN where G is 1."""
    clusters, total = len(sums), sizes.sum()
    centred = sums - sizes[:, None] * (sums.sum(axis=0) / total)
    without = centred / np.where(sizes < total, total - sizes, np.nan)[:, None]  # how far the others' mean is off
    return np.sqrt((clusters - 1) / clusters * (without**2).sum(axis=0))
