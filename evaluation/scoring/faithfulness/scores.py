"""Faithfulness of a sample by deletion curves (AttnLRP B.2) and by shares (NormXLogit 4, 5), and trials of options.

Scores are kept for every sample, so that means, intervals and paired tests need no second pass. A sample whose
relevance or outputs are not finite has NaN, is left out of means, and is counted.

A trial is a method under one of several sets of options, on the same samples; one is chosen (AttnLRP 4.1).

Shapes: N samples, V variants (methods, explanations ...), S states of a curve, K shares, M measures.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from closelook.evaluation.scoring.head_orders import area
from closelook.evaluation.scoring.intervals import Bounds, Resampling, mean_intervals
from closelook.evaluation.scoring.statistics import Comparison, compare


@dataclass(frozen=True)
class Measure:
    """A faithfulness number, of a sample's curves or of all samples together."""

    name: str
    label: str
    higher_is_better: bool
    about: str
    is_share: bool = False  # True: between 0 and 1 for each sample


MEASURES = {
    measure.name: measure
    for measure in (
        Measure("delta_area", "ΔA", True, "area under LeRF minus area under MoRF (AttnLRP, equation 31)"),
        Measure("area_morf", "A MoRF", False, "area under the curve that removes the most relevant token first"),
        Measure("area_lerf", "A LeRF", True, "area under the curve that removes the least relevant token first"),
        Measure("aopc", "AOPC", True, "probability lost without the top tokens, mean over shares"),
        Measure("sufficiency", "Sufficiency", False, "probability lost with the top tokens alone, mean over shares"),
        Measure("accuracy", "Accuracy", False, "correct predictions without the top tokens, mean over shares", True),
        Measure(
            "sufficiency_accuracy", "Sufficiency, accuracy", True, "correct predictions with the top tokens alone", True
        ),
        Measure("pearson", "Pearson r", False, "correlation of predictions without the top tokens and gold scores"),
        Measure("sufficiency_pearson", "Sufficiency, r", True, "correlation of predictions with the top tokens alone"),
    )
}


def areas(values: np.ndarray, counts: np.ndarray) -> dict[str, np.ndarray]:
    """`area_morf`, `area_lerf` and their difference `delta_area` [...] of curves `values` [..., 2, S] (MoRF, LeRF).

    `counts` [S] are the numbers of removed tokens in each state, from 0 to N. Areas are taken over the share k / N by
    the trapezoidal rule (AttnLRP, equation 31).
    """
    morf, lerf = np.moveaxis(area(values, counts), -1, 0)
    return {"area_morf": morf, "area_lerf": lerf, "delta_area": lerf - morf}


def share_scores(probability: np.ndarray, correct: np.ndarray, whole: float) -> dict[str, np.ndarray]:
    """`aopc`, `sufficiency`, `accuracy` and `sufficiency_accuracy` [..., K] of a sample, at every share of top tokens.

    `probability` and `correct` [..., 2, K] are outputs without the top tokens, and with the top tokens alone. `whole`
    is the probability on the full input. Tables show means over K.
    """
    lost = whole - probability
    right = np.where(np.isnan(lost), np.nan, correct)
    of_lost = {"aopc": lost[..., 0, :], "sufficiency": lost[..., 1, :]}
    return {**of_lost, "accuracy": right[..., 0, :], "sufficiency_accuracy": right[..., 1, :]}


@dataclass(frozen=True)
class Summary:
    """A mean over samples; NaN without a finite sample."""

    value: float
    low: float  # ends of the 95 % interval; NaN without an interval
    high: float
    n: int
    left_out: int  # samples whose value is not finite


def summarise(values: np.ndarray, resampling: Resampling, bounds: Bounds = None) -> Summary:
    """The mean of `values` [N] with its interval (see `mean_intervals`).

    Values that are not finite are left out and counted.
    """
    known = np.isfinite(values)
    finite = values[known]
    if not len(finite):
        return Summary(np.nan, np.nan, np.nan, 0, len(values))
    low, high = (float(end[0]) for end in mean_intervals(finite[:, None], resampling.among(known), bounds))
    return Summary(float(finite.mean()), low, high, len(finite), len(values) - len(finite))


def paired(
    values: np.ndarray,
    methods: tuple[str, ...],
    measures: tuple[str, ...],
    resampling: Resampling,
) -> Comparison | None:
    """Compares V methods by `values` [N, V, M] of M measures, on the samples for which all their values are finite.

    A method none of whose samples is finite is left out: it would leave no sample for the other methods. Results have
    the unit of `values` and are not turned into percent. Returns None if no sample or method is left, and without
    resamples.
    """
    finite = np.isfinite(values).all(axis=-1)  # [N, V]
    known = finite.any(axis=0)
    usable = finite[:, known].all(axis=-1)
    names = tuple(name for name, has in zip(methods, known, strict=True) if has)
    return compare(values[usable][:, known], names, measures, resampling.among(usable), scale=1.0)


def with_gaps(values: np.ndarray, finite: np.ndarray) -> np.ndarray:
    """Spreads the rows of `values` [finite V, ...] to [V, ...]: NaN where `finite` [V] is False."""
    whole = np.full((len(finite), *values.shape[1:]), np.nan)
    whole[finite] = values
    return whole


#: Means that differ by less, relative to the larger one or to 1, count as equal: batches of another size round
#: otherwise.
ROUNDING = 1e-5


@dataclass(frozen=True)
class Trial:
    """The result of one set of options."""

    delta_area: float  # mean over samples; NaN without a finite sample
    n: int
    left_out: int  # samples without finite curves
    #: The mean over the samples that all eligible trials have; None if this trial is not eligible, or without samples.
    compared: float | None = None


def trials_of(area_morf: np.ndarray, area_lerf: np.ndarray) -> list[Trial]:
    """A trial for each of V sets of options, from the areas under MoRF and LeRF curves of N samples, both [N, V]."""
    delta = np.asarray(area_lerf - area_morf, float)
    finite = np.isfinite(delta)
    counts = finite.sum(axis=0)
    eligible = _eligible(counts)
    common = finite[:, eligible].all(axis=1)
    trials = []
    for values, is_finite, n, is_eligible in zip(delta.T, finite.T, counts.tolist(), eligible, strict=True):
        mean = float(values[is_finite].mean()) if n else float("nan")
        compared = float(values[common].mean()) if is_eligible and common.any() else None
        trials.append(Trial(mean, n, len(values) - n, compared))
    return trials


def choose(trials: Sequence[Trial]) -> int:
    """The index of the eligible trial with the largest mean ΔA; the first of equal ones.

    A trial is eligible if it has at least half as many samples as the trial with most of them. Means are over the
    samples that all eligible trials have or, if there are none, over each trial's samples. The first trial is chosen if
    no trial has a sample.
    """
    counts = np.array([trial.n for trial in trials])
    if not counts.any():
        return 0
    means: dict[int, float] = {}
    for at in np.flatnonzero(_eligible(counts)).tolist():
        compared = trials[at].compared
        means[at] = trials[at].delta_area if compared is None else compared
    best = max(means.values())
    margin = ROUNDING * max(1.0, abs(best))
    return next(at for at, mean in means.items() if mean >= best - margin)


def _eligible(counts: np.ndarray) -> np.ndarray:
    """[V] bool, True for trials that may be chosen, from their numbers of samples [V]."""
    return np.asarray(2 * counts >= counts.max(initial=0))
