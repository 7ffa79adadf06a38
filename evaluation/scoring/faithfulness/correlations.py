"""Pearson's r between predictions on perturbed inputs and gold scores, and methods compared by it (NormXLogit 5.3).

Shapes: N samples, V methods, M measures, K shares of tokens that are removed, R resamples, G clusters.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from evaluation.scoring.faithfulness.scores import Summary
from evaluation.scoring.intervals import ClusterNumbers, chunk_sizes, cluster_sums
from evaluation.scoring.statistics import FLIPS, Comparison, bootstrap_means, finite_interval, holm


@dataclass(frozen=True)
class Correlations:
    """Pearson's r at each share of removed tokens; NaN where predictions do not vary."""

    by_share: np.ndarray  # [K]
    drawn: np.ndarray  # [R, K] of resampled samples
    n: int
    left_out: int  # samples whose predictions or gold score are not finite

    @property
    def summary(self) -> Summary:
        """The mean over shares, with its percentile interval."""
        low, high = finite_interval(self.drawn.mean(axis=-1))
        return Summary(float(self.by_share.mean()), low, high, self.n, self.left_out)


def pearson(
    predictions: np.ndarray, gold: np.ndarray, resamples: int, seed: int, clusters: ClusterNumbers = None
) -> Correlations:
    """Pearson's r between `predictions` [N, K] on perturbed inputs and `gold` scores [N].

    The bootstrap draws whole samples, with all their shares, or whole clusters if `clusters` [N] are the numbers of the
    samples' clusters.
    """
    finite = np.isfinite(predictions).all(axis=-1) & np.isfinite(gold)
    n, left_out = int(finite.sum()), int((~finite).sum())
    if n < 2:
        shares = predictions.shape[-1]
        return Correlations(np.full(shares, np.nan), np.full((0, shares), np.nan), n, left_out)
    x, y = predictions[finite], np.broadcast_to(gold[finite, None], predictions[finite].shape)
    x, y = x - x.mean(axis=0), y - y.mean(axis=0)  # sums of squares would cancel far from zero
    moments = np.stack([x, y, x * x, y * y, x * y], axis=1)  # [n, 5, K]
    of_finite = None if clusters is None else clusters[finite]
    drawn = bootstrap_means(moments.reshape(n, -1), resamples, seed, of_finite)
    drawn = drawn.reshape(len(drawn), *moments.shape[1:])
    return Correlations(_correlation(moments.mean(axis=0)), _correlation(np.moveaxis(drawn, 1, 0)), n, left_out)


def paired_correlations(
    predictions: np.ndarray,
    gold: np.ndarray,
    methods: tuple[str, ...],
    measures: tuple[str, ...],
    resamples: int,
    seed: int,
    clusters: ClusterNumbers = None,
) -> Comparison | None:
    """Compares methods by Pearson's r between `predictions` [N, V, M, K] and `gold` [N], averaged over shares.

    The samples are those that all methods have; a method without any finite sample is left out. All intervals use the
    same resamples. p values are of a permutation test that swaps the predictions under two methods, sample by sample:
    under the null hypothesis they are exchangeable. Samples that share a cluster number in `clusters` [N] are drawn and
    swapped together. A method whose predictions do not vary has the value NaN, and p values of 1.

    Returns None for fewer than two samples, without methods, and without `resamples`.
    """
    finite = np.isfinite(predictions).all(axis=(2, 3))  # [N, V]
    known = finite.any(axis=0)
    usable = finite[:, known].all(axis=-1) & np.isfinite(gold)
    n, methods = int(usable.sum()), tuple(name for name, has in zip(methods, known, strict=True) if has)
    if n < 2 or not methods or not resamples:
        return None
    x, y = predictions[usable][:, known], gold[usable]
    x, y = x - x.mean(axis=(0, 1)), y - y.mean()  # sums of squares would cancel far from zero
    terms = np.stack([x, x * x, x * y[:, None, None, None]], axis=1)  # [n, 3, V, M, K]
    of_gold = np.stack([y, y * y], axis=1)  # [n, 2]
    whole = _mean_correlations(terms.mean(axis=0)[None], of_gold.mean(axis=0)[None])[0]
    of_usable = None if clusters is None else clusters[usable]
    drawn = bootstrap_means(np.concatenate([terms.reshape(n, -1), of_gold], axis=1), resamples, seed, of_usable)
    resampled = _mean_correlations(drawn[:, :-2].reshape(-1, *terms.shape[1:]), drawn[:, -2:])
    low, high = _intervals(resampled)
    difference_low, difference_high = _intervals(resampled[:, :, None] - resampled[:, None])
    together, _ = cluster_sums(terms, of_usable)
    p = holm(_swapped_p(together, of_gold, whole, FLIPS * resamples, seed))
    count = None if clusters is None else len(together)
    compared = Comparison(methods, measures, n, whole, low, high, difference_low, difference_high, p, clusters=count)
    return compared.tested()


def _swapped_p(terms: np.ndarray, of_gold: np.ndarray, whole: np.ndarray, swaps: int, seed: int) -> np.ndarray:
    """p values [V, V, M] of the differences between correlations `whole` [V, M], from `swaps` random swaps.

    p is the share of swaps whose difference is at least as large as the observed one, which counts as one swap. `terms`
    [G, 3, V, M, K] are the sums of x, x x and x y over each cluster, which is swapped as a whole; `of_gold` [N, 2] are
    y and y y of each sample.
    """
    rng, n, shape = np.random.default_rng([seed, 1]), len(of_gold), terms.shape[1:]
    methods, total, gold = len(whole), terms.sum(axis=0), of_gold.mean(axis=0)[None]
    extreme = np.ones((methods, methods, whole.shape[1]))
    for count in chunk_sizes(swaps, len(terms)):
        keeps = rng.integers(0, 2, (count, len(terms))).astype(float)
        kept = (keeps @ terms.reshape(len(terms), -1)).reshape(count, *shape)  # sums over clusters that are not swapped
        for a, b in combinations(range(methods), 2):
            swapped = kept[:, :, [a, b]] + total[:, [b, a]] - kept[:, :, [b, a]]
            r = _mean_correlations(swapped / n, gold)  # [R, 2, M]
            least = np.abs(whole[a] - whole[b]) - 1e-9  # minus what rounding may add
            # Negated, so that a swap counts as extreme if its predictions do not vary and r is NaN.
            extreme[a, b] += (~(np.abs(r[:, 0] - r[:, 1]) < least)).sum(axis=0)
            extreme[b, a] = extreme[a, b]
    return extreme / (swaps + 1)


def _mean_correlations(terms: np.ndarray, of_gold: np.ndarray) -> np.ndarray:
    """Pearson's r averaged over shares [R, V, M], from means of x, x x and x y [R, 3, V, M, K] over samples.

    `of_gold` are the means of y and y y, [R, 2] or [1, 2] for all resamples.
    """
    x, xx, xy = np.moveaxis(terms, 1, 0)
    y, yy = (np.broadcast_to(mean[:, None, None, None], x.shape) for mean in of_gold.T)
    return _correlation(np.stack([x, y, xx, yy, xy])).mean(axis=-1)


def _intervals(resampled: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Percentile intervals (low [...], high [...]) over the resamples in `resampled` [R, ...]."""
    shape = resampled.shape[1:]
    columns = resampled.reshape(len(resampled), math.prod(shape)).T
    low, high = np.array([finite_interval(column) for column in columns]).T.reshape(2, *shape)
    return low, high


def _correlation(moments: np.ndarray) -> np.ndarray:
    """Pearson's r [...] from the means [5, ...] of x, y, x x, y y and x y; NaN where x or y varies by rounding only."""
    x, y, xx, yy, xy = moments
    varies = (xx - x * x > 1e-12 * xx) & (yy - y * y > 1e-12 * yy)
    spread = np.sqrt(np.where(varies, (xx - x * x) * (yy - y * y), 1))
    return np.where(varies, (xy - x * y) / spread, np.nan)
