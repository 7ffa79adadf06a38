"""Statistics of controls: do explanations change where the model does? Shapes: N samples, T tokens."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from evaluation.scoring.areas import rank_correlation

BAR = 0.2  # a method whose interval lies above it fails the randomisation of all weights
CHANCE_LEVEL = 0.999  # of the interval that random relevance must lie in: it is looked at in many cells
_CHANCE_Z = 3.2905  # two-sided, of this level
_RESAMPLES = 2000
_SEED = 0


@dataclass(frozen=True)
class Agreement:
    """Spearman's correlations of two maps; None where there is no order to compare."""

    signed: float | None
    absolute: float | None
    flat: bool = False  # one of the maps says the same of all tokens


def agreement(first: np.ndarray, other: np.ndarray) -> Agreement:
    """The agreement of two maps [T] of the same tokens; None of a single token, and where numbers are not finite.

    It is 1 where a map is flat: that says the same whatever the model does.
    """
    if len(first) < 2 or not (np.isfinite(first).all() and np.isfinite(other).all()):
        return Agreement(None, None)
    signed = rank_correlation(first.tolist(), other.tolist())
    absolute = rank_correlation(np.abs(first).tolist(), np.abs(other).tolist())
    flat = bool(np.isnan(signed))
    return Agreement(1.0 if flat else signed, 1.0 if np.isnan(absolute) else absolute, flat)


@dataclass(frozen=True)
class Verdict:
    """A mean over samples with its 95 % interval, and whether the control is passed; None where nothing is asked."""

    value: float
    low: float
    high: float
    n: int
    passed: bool | None = None


def randomisation_verdict(correlations: Iterable[float | None]) -> Verdict:
    """The verdict on a method from signed correlations [N] where all weights are random.

    It fails where the interval's lower end exceeds BAR. Nothing is said of no samples.
    """
    values = finite(correlations)
    low, high = mean_interval(values)
    passed = None if not len(values) else not low > BAR
    return Verdict(_mean(values), low, high, len(values), passed)


def chance_verdict(correlations: Iterable[float | None], tokens: Iterable[int]) -> Verdict:
    """The verdict on random relevance: its mean correlation lies in the interval of chance, which is `low` to `high`.

    Spearman's correlation of two independent orders of T tokens has the mean 0 and the variance 1 / (T - 1).
    """
    pairs = [(value, count) for value, count in zip(correlations, tokens, strict=True) if value is not None]
    values = np.array([value for value, _ in pairs], float)
    if not len(values):
        return Verdict(float("nan"), float("nan"), float("nan"), 0)
    counts = np.array([count for _, count in pairs], float)
    half = _CHANCE_Z * float(np.sqrt((1 / (counts - 1)).sum())) / len(values)
    mean = _mean(values)
    return Verdict(mean, -half, half, len(values), abs(mean) <= half)


def described(values: Iterable[float | None]) -> Verdict:
    """A mean of correlations that nothing is asked of."""
    known = finite(values)
    low, high = mean_interval(known)
    return Verdict(_mean(known), low, high, len(known))


def finite(values: Iterable[float | None]) -> np.ndarray:
    """The values that are there."""
    known = np.array([np.nan if value is None else value for value in values], float)
    return known[np.isfinite(known)]


def _mean(values: np.ndarray) -> float:
    return float(values.mean()) if len(values) else float("nan")


def mean_interval(values: np.ndarray) -> tuple[float, float]:
    """The 95 % bootstrap-t interval of the mean of `values` [N] within [-1, 1]; NaN for fewer than two."""
    n = len(values)
    if n < 2:
        return float("nan"), float("nan")
    mean, error = float(values.mean()), float(values.std(ddof=1) / np.sqrt(n))
    if error <= 1e-12:
        return mean, mean
    drawn = values[np.random.default_rng(_SEED).integers(0, n, (_RESAMPLES, n))]
    errors = drawn.std(axis=1, ddof=1) / np.sqrt(n)
    varied = errors > 1e-9
    t = (drawn.mean(axis=1)[varied] - mean) / errors[varied]
    least, most = np.quantile(t, [0.025, 0.975])
    return max(-1.0, mean - float(most) * error), min(1.0, mean - float(least) * error)
