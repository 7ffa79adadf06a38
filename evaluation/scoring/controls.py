"""Statistics of controls: do explanations change where the model does? Shapes: N samples, T tokens."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from evaluation.scoring.areas import rank_correlation
from evaluation.scoring.faithfulness import summarise
from evaluation.scoring.intervals import FEWEST

BAR = 0.2  # a method whose interval lies above it fails the randomisation of all weights
CHANCE_LEVEL = 0.999  # of the interval that random relevance must lie in: it is looked at in many cells
_CHANCE_Z = 3.2905  # two-sided, of this level
_RESAMPLES = 1000
#: Names of controls in rows. A method passes or fails those that are verdicts; the others describe.
RANDOMISED, CHANCE = "randomisation", "chance"  # verdicts, where all weights are random
BY_DEPTH, BY_DEPTH_ABSOLUTE, ARCHITECTURE = "randomisation by depth", "absolute by depth", "architecture"
REWRITTEN, SHAPLEY, SHAPLEY_ERROR = "rewritten", "shapley", "error of shapley"  # no verdicts
_BOUNDS = (-1.0, 1.0)  # of correlations, which of short texts often lie on them


class ControlRow(NamedTuple):
    """A number of one control with its 95 % interval; of `chance`, with the interval that it must lie in.

    `passed` is None where nothing is asked. `detail` is the depth of what goes by depth, in the order of the rows.
    """

    model: str
    task: str
    method: str
    control: str
    value: float
    low: float
    high: float
    passed: bool | None
    n: int
    detail: str = ""


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


def error_after_scaling(relevance: np.ndarray, exact: np.ndarray) -> float:
    """sum (b R - S)^2 / sum S^2 of relevance [T] and values S [T], with the b >= 0 that makes it least; NaN if S is 0.

    >>> error_after_scaling(np.array([2.0, 4.0]), np.array([1.0, 2.0]))
    0.0
    >>> error_after_scaling(np.array([-2.0, -4.0]), np.array([1.0, 2.0]))
    1.0
    """
    size, exact_size = float(relevance @ relevance), float(exact @ exact)
    scale = max(0.0, float(relevance @ exact) / size) if size else 0.0
    return float(((scale * relevance - exact) ** 2).sum()) / exact_size if exact_size else float("nan")


@dataclass(frozen=True)
class Verdict:
    """A mean over samples with its 95 % interval, and whether the control is passed; None where nothing is asked."""

    value: float
    low: float
    high: float
    n: int
    passed: bool | None = None


def randomisation_verdict(
    correlations: Sequence[float | None], flat: Iterable[bool], seed: int = 0, clusters: np.ndarray | None = None
) -> Verdict:
    """The verdict on a method from signed correlations [N] where all weights are random.

    It fails where the interval's lower end exceeds BAR, and where every map is `flat` [N]. Otherwise nothing is said of
    fewer than FEWEST samples, nor of too few clusters for an interval. `seed` is that of the interval's resamples; for
    `clusters` [N] see `mean_intervals`.
    """
    found = described(correlations, seed, clusters=clusters)
    if found.n and all(flat):
        return replace(found, passed=False)
    if found.n < FEWEST or np.isnan(found.low):
        return found
    return replace(found, passed=not found.low > BAR)


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


def described(
    values: Sequence[float | None],
    seed: int = 0,
    bounds: tuple[float, float] = _BOUNDS,
    clusters: np.ndarray | None = None,
) -> Verdict:
    """A mean of correlations [N], or of numbers within other `bounds`, that nothing is asked of.

    For `clusters` [N] see `mean_intervals`.
    """
    summary = summarise(np.array(values, float), _RESAMPLES, seed, bounds, clusters)  # None becomes NaN
    return Verdict(summary.value, summary.low, summary.high, summary.n)


def largest(changes: Iterable[float | None]) -> Verdict:
    """The largest of some changes, which has no interval."""
    known = finite(changes)
    return Verdict(float(known.max()) if len(known) else float("nan"), float("nan"), float("nan"), len(known))


def finite(values: Iterable[float | None]) -> np.ndarray:
    """The values that are there."""
    known = np.array([np.nan if value is None else value for value in values], float)
    return known[np.isfinite(known)]


def _mean(values: np.ndarray) -> float:
    return float(values.mean()) if len(values) else float("nan")
