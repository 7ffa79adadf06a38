"""The cost of explanations: medians and quartiles of timed passes, by model, task, device and length."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np


class Pass(NamedTuple):
    """The key of timed passes that are summarised together.

    `length` is the upper end of a bucket of lengths, a power of two; lengths are in tokens of the padded batch.
    """

    task: str
    model: str
    dtype: str
    device: str
    method: str  # name of the pass, which may serve several methods
    stage: str  # forward | backward | aggregate | method
    length: int


@dataclass(frozen=True)
class Cost:
    """The cost of a sample, over the timed batches of a pass. Seconds are (first quartile, median, third quartile)."""

    batches: int
    sample_s: tuple[float, float, float]
    tokens_per_s: float  # median over batches, padding included
    peak_bytes: int | None  # largest over batches; None on devices that do not report memory


def costs(rows: Iterable[Mapping[str, Any]]) -> dict[Pass, Cost]:
    """Costs by pass, from rows of the schema RUNTIME with the columns `model`, `task` and `dtype` added."""
    groups: dict[Pass, list[Mapping[str, Any]]] = defaultdict(list)
    for row in rows:
        measured = (row["task"], row["model"], row["dtype"], row["device"], row["method"], row["stage"])
        groups[Pass(*measured, bucket(row["length"]))].append(row)
    return {key: _cost(groups[key]) for key in sorted(groups)}


def bucket(length: int) -> int:
    """The smallest power of two that is at least `length`.

    >>> [bucket(length) for length in (1, 2, 3, 64, 65)]
    [1, 2, 4, 64, 128]
    """
    return 1 << max(0, length - 1).bit_length()


def _cost(rows: list[Mapping[str, Any]]) -> Cost:
    """The cost over `rows`, one for each timed batch of a pass."""
    seconds = np.array([row["wall_s"] for row in rows])
    samples = np.array([row["batch"] for row in rows])
    tokens = samples * np.array([row["length"] for row in rows])
    low, median, high = np.quantile(seconds / samples, [0.25, 0.5, 0.75])
    peaks = [row["peak_bytes"] for row in rows if row["peak_bytes"] is not None]
    rate = float(np.median(tokens / seconds))
    return Cost(len(rows), (float(low), float(median), float(high)), rate, max(peaks, default=None))
