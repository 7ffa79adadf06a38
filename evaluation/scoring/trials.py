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
    """What one set of options gave."""

    delta_area: float  # mean over samples; NaN where no sample is left
    n: int
    left_out: int  # samples without finite curves


def trials_of(area_morf: np.ndarray, area_lerf: np.ndarray) -> list[Trial]:
    """The trials of areas [N, V]."""
    trials = []
    for delta in np.asarray(area_lerf - area_morf, float).T:
        finite = delta[np.isfinite(delta)]
        mean = float(finite.mean()) if len(finite) else float("nan")
        trials.append(Trial(mean, len(finite), len(delta) - len(finite)))
    return trials


def choose(trials: Sequence[Trial]) -> int:
    """The trial with the largest area difference, the first of equal ones.

    One that has fewer than half the samples of the fullest is not chosen, whatever its mean; without any sample at all,
    as of a task that no text fits, the first is.
    """
    most = max(trial.n for trial in trials)
    if not most:
        return 0
    able = [at for at, trial in enumerate(trials) if 2 * trial.n >= most]
    best = max(trials[at].delta_area for at in able)
    margin = ROUNDING * max(1.0, abs(best))
    return next(at for at in able if trials[at].delta_area >= best - margin)
