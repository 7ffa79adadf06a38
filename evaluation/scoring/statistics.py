"""How sure the means are: bootstrap intervals over samples, and paired tests between methods on the same samples.

Methods are compared on the very same resamples, so an interval of a difference takes their correlation into account.
Shapes: N samples, M methods, K metrics, R resamples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

LEVEL = 0.95
FLIPS = 10  # random signs for each resample: Holm needs small p values
TEST = (
    "two-sided paired sign-flip permutation test on the per-sample differences, "
    "p values adjusted by Holm's method over the pairs of methods of one model, task and metric"
)
_CHUNK = 1 << 22  # random numbers at a time


@dataclass(frozen=True)
class Comparison:
    """Methods on the same samples of one model, task and precision."""

    methods: tuple[str, ...]
    metrics: tuple[str, ...]
    n: int
    mean: np.ndarray  # [M, K]
    low: np.ndarray  # [M, K] ends of the 95 % bootstrap interval
    high: np.ndarray
    difference_low: np.ndarray  # [M, M, K] the same for row's mean minus column's
    difference_high: np.ndarray
    p: np.ndarray  # [M, M, K] adjusted; 1 on the diagonal

    def at(self, method: str, metric: str) -> tuple[int, int] | None:
        """The indices of a method into M and of a metric into K; None for one that is not compared."""
        if method not in self.methods or metric not in self.metrics:
            return None
        return self.methods.index(method), self.metrics.index(metric)


def compare(
    values: np.ndarray,
    methods: tuple[str, ...],
    metrics: tuple[str, ...],
    resamples: int,
    seed: int,
    scale: float | np.ndarray = 100.0,
) -> Comparison | None:
    """How M methods compare by K metrics, from the `values` [N, M, K] of N samples.

    They are told times `scale`, one number or [K]; by default shares are told in percent. None when there is
    nothing to resample.
    """
    samples, shape = len(values), values.shape[1:]
    if not samples or not resamples or not values.size:
        return None
    flat = (scale * values).reshape(samples, -1)
    means = bootstrap_means(flat, resamples, seed).reshape(-1, *shape)  # [R, M, K]
    differences = means[:, :, None] - means[:, None]  # [R, M, M, K]
    low, high = interval(means)
    difference_low, difference_high = interval(differences)
    p = sign_flip_p(flat.reshape(samples, *shape), FLIPS * resamples, seed)
    return Comparison(
        methods, metrics, samples, flat.mean(axis=0).reshape(shape), low, high, difference_low, difference_high, holm(p)
    )


def bootstrap_means(values: np.ndarray, resamples: int, seed: int) -> np.ndarray:
    """Means [R, C] of `values` [N, C] over samples drawn with replacement."""
    rng = np.random.default_rng(seed)
    samples = len(values)

    def weights(count: int) -> np.ndarray:
        drawn = rng.integers(0, samples, (count, samples))
        drawn += samples * np.arange(count)[:, None]
        return np.bincount(drawn.ravel(), minlength=count * samples).reshape(count, samples)

    parts = [weights(count) @ values / samples for count in even_parts(resamples, samples)]
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
    flat = values.reshape(samples, -1).astype(np.float32)
    total = flat.sum(axis=0).reshape(shape)
    observed = np.abs(total[:, None] - total[None]) - 1e-5 * np.abs(flat).sum(axis=0).max()  # rounding is no evidence
    extreme = np.ones_like(observed)
    for count in even_parts(flips, samples):
        signs = 2 * rng.integers(0, 2, (count, samples), dtype=np.int8).astype(np.float32) - 1
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


def step_down(p: Sequence[float]) -> list[float]:
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


def even_parts(total: int, samples: int) -> list[int]:
    """`total` cut so that count x samples stays within _CHUNK."""
    step = max(1, _CHUNK // max(1, samples))
    return [min(step, total - done) for done in range(0, total, step)]
