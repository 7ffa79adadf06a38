"""The expected content of a row of a report, and its comparison with the row."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from tests.recompute.statistics import Interval, Range, smallest_difference

#: Columns of the report's frame that hold numbers; `x` is that of points of figures.
NUMBERS = ("x", "value", "n", "low", "high", "p", "reference")
UNWRITTEN = "no recomputation is written"


@dataclass(frozen=True)
class Expected:
    """The numbers of a row by column; columns that are not named have no recomputation."""

    numbers: Mapping[str, Range] = field(default_factory=dict)
    state: str = "done"
    scale: float = 1.0  # the unit of the numbers, of which a millionth is rounding

    def tolerance(self, expected: Range) -> float:
        return 2e-6 * max(self.scale, abs(expected.value))

    def widened(self, of_value: float, of_ends: float) -> Expected:
        """The same, the value and the ends of its interval known up to such shares of the scale."""
        slack = {"value": of_value * self.scale, "low": of_ends * self.scale, "high": of_ends * self.scale}
        wide = {name: self.numbers[name].widened(by) for name, by in slack.items() if name in self.numbers and by}
        return replace(self, numbers={**self.numbers, **wide})


@dataclass(frozen=True)
class Left:
    """A row whose numbers cannot be recomputed, and the reason."""

    reason: str


UNDEFINED = Expected(state="undefined")
TOLD = "Smallest difference told"  # a row of tables
NOT_FINITE = Expected(state="not finite")


@dataclass
class Compared:
    """The outcome of comparing the rows of one table or figure."""

    recomputed: int = 0
    left: int = 0  # numbers without a recomputation
    reasons: Counter[str] = field(default_factory=Counter)  # of those, numbers by reason
    gap: float = 0.0  # largest difference of numbers that are no draws
    beyond: float = 0.0  # largest distance from a Monte Carlo range, of numbers that are draws
    differences: list[str] = field(default_factory=list)

    def leave(self, reason: str, numbers: int) -> None:
        """Count numbers that are not recomputed."""
        self.left += numbers
        if numbers:
            self.reasons[reason] += numbers


def number(
    value: float, n: int | None = None, interval: Interval = None, p: Range | None = None, scale: float = 1.0
) -> Expected:
    """A row of a value, where given with its samples, interval and p."""
    numbers = {"value": Range.exact(value)}
    if n is not None:
        numbers["n"] = Range.exact(n)
    if interval is not None:
        numbers["low"], numbers["high"] = interval
    if p is not None:
        numbers["p"] = p
    return Expected(numbers, scale=scale)


def smallest(values: np.ndarray, scale: float = 1.0) -> Expected:
    """The row of the smallest difference that samples tell, from `values` [n, M] of M methods."""
    value = smallest_difference(values)
    return number(value, scale=scale) if value > 1e-6 else UNDEFINED


def compare(
    name: str, row: Mapping[str, str], columns: tuple[str, ...], expected: Expected | Left | None, result: Compared
) -> None:
    """Count the numbers of a row and note those that are not as expected."""
    printed = {column: float(row[column]) for column in columns if row.get(column, "") != ""}
    if expected is None or isinstance(expected, Left):
        result.leave(UNWRITTEN if expected is None else expected.reason, len(printed))
        return
    if row.get("state", expected.state) != expected.state:
        result.differences.append(f"{name} is {row['state']}, recomputed {expected.state}")
    for column, value in printed.items():
        _compare(f"{name} {column}", value, expected, column, result)
    result.differences += list(_absent(name, printed, expected))


def _absent(name: str, printed: Mapping[str, float], expected: Expected) -> Iterator[str]:
    for column in expected.numbers:
        if column not in printed and not math.isnan(expected.numbers[column].value):
            yield f"{name} has no {column}, recomputed {expected.numbers[column].value:.6g}"


def _compare(name: str, value: float, expected: Expected, column: str, result: Compared) -> None:
    if column not in expected.numbers:
        result.leave(UNWRITTEN, 1)
        return
    bounds = expected.numbers[column]
    result.recomputed += 1
    gap = max(bounds.least - value, value - bounds.most, 0.0)
    if math.isnan(value) != math.isnan(bounds.value):
        gap = math.inf
    drawn = bounds.most > bounds.least
    if drawn:
        result.beyond = max(result.beyond, gap)
    else:
        result.gap = max(result.gap, gap)
    if gap > (expected.tolerance(bounds) if column not in ("p", "n") else 1e-9):
        span = f" ({bounds.least:.6g} to {bounds.most:.6g})" if drawn else ""
        result.differences.append(f"{name} is {value:.6g}, recomputed {bounds.value:.6g}{span}")
