"""Trials: a method under several sets of options on the same samples, and which of them is chosen (AttnLRP 4.1).

Shapes: N samples, V trials.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

#: Means that lie closer, relative to the larger one or to 1, are equal: other batches round otherwise.
ROUNDING = 1e-5


@dataclass(frozen=True)
class Trial:
    """The result of one set of options."""

    delta_area: float  # mean over samples; NaN where no sample is left
    n: int
    left_out: int  # samples without finite curves
    compared: float | None = None  # mean over the samples of every trial that may be chosen; None where there are none


def trials_of(area_morf: np.ndarray, area_lerf: np.ndarray) -> list[Trial]:
    """The trials of areas [N, V]."""
    delta = np.asarray(area_lerf - area_morf, float)
    finite = np.isfinite(delta)
    counts = finite.sum(axis=0)
    able = _able(counts)
    common = finite[:, able].all(axis=1)
    trials = []
    for own, known, n, may_be_chosen in zip(delta.T, finite.T, counts.tolist(), able, strict=True):
        mean = float(own[known].mean()) if n else float("nan")
        compared = float(own[common].mean()) if may_be_chosen and common.any() else None
        trials.append(Trial(mean, n, len(own) - n, compared))
    return trials


def choose(trials: Sequence[Trial]) -> int:
    """The trial with the largest area difference on the samples that all have, the first of equal ones.

    One that has fewer than half the samples of the fullest is not chosen, whatever its mean, and takes no sample from
    the others; without any sample at all, as of a task that no text fits, the first is. Where no sample is common, each
    stands for its own.
    """
    counts = np.array([trial.n for trial in trials])
    if not counts.any():
        return 0
    means: dict[int, float] = {}
    for at in np.flatnonzero(_able(counts)).tolist():
        compared = trials[at].compared
        means[at] = trials[at].delta_area if compared is None else compared
    best = max(means.values())
    margin = ROUNDING * max(1.0, abs(best))
    return next(at for at, mean in means.items() if mean >= best - margin)


def _able(counts: np.ndarray) -> np.ndarray:
    """[V] bool: which trials of so many samples [V] may be chosen."""
    return np.asarray(2 * counts >= counts.max(initial=0))
