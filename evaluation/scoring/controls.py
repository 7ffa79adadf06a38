"""Statistics of controls, which test whether explanations change when the model changes (Adebayo et al. 2018).

Shapes: N samples, T tokens of a sample.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from closelook.evaluation.scoring.faithfulness.areas import rank_correlation
from closelook.evaluation.scoring.faithfulness.scores import summarise
from closelook.evaluation.scoring.intervals import FEWEST, Resampling

BAR = 0.2  # a method whose interval lies above it fails the randomisation of all weights
_CHANCE_Z = 3.2905  # two-sided normal quantile of 99.9 %, which is strict because many cells of random are tested
RESAMPLING = Resampling(1000)
#: Names of controls in rows. A method passes or fails RANDOMISED and CHANCE; the other controls only describe it.
RANDOMISED, CHANCE = "randomisation", "chance"  # all weights are random
BY_DEPTH, BY_DEPTH_ABSOLUTE, ARCHITECTURE = "randomisation by depth", "absolute by depth", "architecture"
SHAPLEY, SHAPLEY_ERROR = "shapley", "error of shapley"
_BOUNDS = (-1.0, 1.0)  # of correlations, which often reach them in short texts


class ControlRow(NamedTuple):
    """A number of one control. `low` to `high` is its 95 % interval, or for CHANCE the interval that it must lie in.

    `passed` is None if the control has no verdict. `detail` names the depth in controls that go by depth, whose rows
    are in the order of depth.
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
    """Spearman's correlations of two relevance maps; None if the maps cannot be compared."""

    signed: float | None  # of the relevance
    absolute: float | None  # of its absolute value
    flat: bool = False  # one of the maps gives every token the same relevance


def agreement(first: np.ndarray, second: np.ndarray) -> Agreement:
    """The agreement of two relevance maps [T] of the same tokens.

    Correlations are None for a single token, and if a value is not finite. A map is flat if all its values are equal.
    If either map is flat, the correlation is 1, so that it counts as unchanged; the same holds for absolute values.
    """
    if len(first) < 2 or not (np.isfinite(first).all() and np.isfinite(second).all()):
        return Agreement(None, None)
    signed = rank_correlation(first.tolist(), second.tolist())
    absolute = rank_correlation(np.abs(first).tolist(), np.abs(second).tolist())
    flat = bool(np.isnan(signed))
    return Agreement(1.0 if flat else signed, 1.0 if np.isnan(absolute) else absolute, flat)


def error_after_scaling(relevance: np.ndarray, exact: np.ndarray) -> float:
    """Relative squared error of relevance R [T] against `exact` values S [T], after the best rescaling of R.

    It is the minimum over b >= 0 of sum (b R - S)^2 / sum S^2; NaN if all S are 0.
    """
    size, exact_size = float(relevance @ relevance), float(exact @ exact)
    scale = max(0.0, float(relevance @ exact) / size) if size else 0.0
    error = scale * relevance - exact
    return float(error @ error) / exact_size if exact_size else float("nan")


@dataclass(frozen=True)
class Verdict:
    """A mean over samples with its 95 % interval, and the outcome of the control."""

    value: float
    low: float
    high: float
    n: int
    passed: bool | None = None  # None: the control has no verdict


def randomisation_verdict(
    correlations: Sequence[float | None], flat: Iterable[bool], resampling: Resampling = RESAMPLING
) -> Verdict:
    """The verdict on a method, from signed correlations [N] between maps of the trained and of a random model.

    The method fails if the lower end of the interval exceeds BAR, or if every map is `flat` [N]. Otherwise there is no
    verdict for fewer than FEWEST samples, or for too few clusters to have an interval.
    """
    mean = mean_verdict(correlations, resampling)
    if mean.n and all(flat):
        return replace(mean, passed=False)
    if mean.n < FEWEST or np.isnan(mean.low):
        return mean
    return replace(mean, passed=not mean.low > BAR)


def chance_verdict(correlations: Iterable[float | None], tokens: Iterable[int]) -> Verdict:
    """The verdict on random relevance: it passes if its mean correlation lies within the interval of chance.

    `correlations` [N] and the numbers of `tokens` [N] are of the same samples; None is left out. `low` and `high` are
    the ends of the interval of chance: Spearman's correlation of two independent orders of T tokens has mean 0 and
    variance 1 / (T - 1).
    """
    pairs = [(value, count) for value, count in zip(correlations, tokens, strict=True) if value is not None]
    values = np.array([value for value, _ in pairs], float)
    if not len(values):
        return Verdict(float("nan"), float("nan"), float("nan"), 0)
    counts = np.array([count for _, count in pairs], float)
    half = _CHANCE_Z * float(np.sqrt((1 / (counts - 1)).sum())) / len(values)
    mean = float(values.mean())
    return Verdict(mean, -half, half, len(values), abs(mean) <= half)


def mean_verdict(
    values: Sequence[float | None], resampling: Resampling = RESAMPLING, bounds: tuple[float, float] = _BOUNDS
) -> Verdict:
    """The mean of `values` [N] with its interval, without a verdict (`passed` is None).

    `bounds` is the range of the values, by default that of correlations. None and values that are not finite are left
    out.
    """
    summary = summarise(np.array(values, float), resampling, bounds)  # None becomes NaN
    return Verdict(summary.value, summary.low, summary.high, summary.n)
