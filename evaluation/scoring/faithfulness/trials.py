"""Trials: a method under several sets of options on the same samples, and the choice among them (AttnLRP 4.1).

Shapes: N samples, V trials.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

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

    >>> choose(trials_of(np.array([[1.0, 1.0], [2.0, 2.0]]), np.array([[1.5, 2.0], [2.5, 3.0]])))
    1
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
