"""Near ties: entries of a ranking whose order rounding may have decided. No torch here.

Sums depend on what shares a batch, so that equal inputs may differ in their last digits.
"""

from __future__ import annotations

import numpy as np

ROUNDING = 1e-5  # relative: what is kept may lie so far below what is left out
SPARE = 8  # entries that are held beyond those that are kept, until near ties are computed again, each alone


def near_ties(values: np.ndarray, count: int) -> np.ndarray:
    """[N, K] bool: of rows [N, K] in descending order, where another rounding might change which are the first `count`.

    Those are runs of entries, each within ROUNDING of the next, that begin before `count`. Zeros, as of a ReLU, are the
    same in every batch, and no run.
    """
    linked, start = _linked(values), runs(values)
    begins = start == np.arange(values.shape[1])
    tied = np.pad(linked, ((0, 0), (0, 1))) | ~begins
    return np.asarray(tied & (start < count))


def runs(values: np.ndarray) -> np.ndarray:
    """Of rows [N, K] in descending order, where the run of each entry begins [N, K]: equal but for rounding.

    >>> runs(np.array([[2.0, 1.0, 1.0 - 1e-7, 0.5]])).tolist()
    [[0, 1, 1, 3]]
    """
    begins = np.pad(~_linked(values), ((0, 0), (1, 0)), constant_values=True)
    return np.maximum.accumulate(np.where(begins, np.arange(values.shape[1]), 0), axis=1)


def _linked(values: np.ndarray) -> np.ndarray:
    above, below = values[:, :-1], values[:, 1:]
    with np.errstate(invalid="ignore"):  # minus infinity stands where there is no entry
        return np.asarray((above - below <= ROUNDING * np.abs(above)) & (above != 0))
