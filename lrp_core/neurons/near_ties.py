"""Near ties: entries of a ranking whose order rounding may have decided. Imports no torch.

The rounding of a forward pass depends on the batch, so that the same text may give values with other last digits.
"""

from __future__ import annotations

import numpy as np

ROUNDING = 1e-5  # values that differ by less than this share of the larger one may be equal up to rounding
SPARE = 8  # entries kept beyond those that are asked for, until near ties are computed again one by one


def runs(values: np.ndarray) -> np.ndarray:
    """The index at which the run of each entry begins, [N, K], in rows [N, K] in descending order.

    A run is a sequence of entries in which each is equal to the next up to rounding.

    >>> runs(np.array([[2.0, 1.0, 1.0 - 1e-7, 0.5]])).tolist()
    [[0, 1, 1, 3]]
    """
    begins = np.pad(~_linked(values), ((0, 0), (1, 0)), constant_values=True)
    return np.maximum.accumulate(np.where(begins, np.arange(values.shape[1]), 0), axis=1)


def _linked(values: np.ndarray) -> np.ndarray:
    """True where an entry and the next one are equal up to rounding and not 0, [N, K - 1]."""
    above, below = values[:, :-1], values[:, 1:]
    with np.errstate(invalid="ignore"):  # minus infinity stands where there is no entry
        return np.asarray((above - below <= ROUNDING * np.abs(above)) & (above != 0))
