"""The growth of measured numbers: the exponent of a power law, and points where two curves cross. Needs no torch."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

Curve = Mapping[float, float]  # measured numbers by what grows, such as tokens; both are positive


@dataclass(frozen=True)
class Overtaking:
    """A point where two curves cross."""

    at: float
    extrapolated: bool  # True if the point lies outside the measured range and was computed from two power laws
    above: bool  # True if the first curve is the higher one after the point


def power_law(curve: Curve) -> tuple[float, float] | None:
    """The (factor, exponent) of `factor * x ** exponent`, fitted by least squares to the logarithms.

    None if the curve has fewer than two points.
    """
    return _fit(curve) if len(curve) > 1 else None


def _fit(curve: Curve) -> tuple[float, float]:
    """The (factor, exponent) of the power law that fits the curve best in the logarithms."""
    line = statistics.linear_regression([math.log(x) for x in curve], [math.log(y) for y in curve.values()])
    return math.exp(line.intercept), line.slope


def crossings(first: Curve, second: Curve) -> list[Overtaking]:
    """The points where two curves cross.

    Between measured points, curves are straight lines in the logarithms. If they do not cross there, the crossing of
    their power laws is returned, unless it lies further outside the measured range than that range is wide.
    """
    common = sorted(set(first) & set(second))
    points = [(math.log(x), math.log(first[x] / second[x])) for x in common]
    crossed = []
    for (x, gap), (next_x, next_gap) in pairwise(points):
        if (gap > 0) != (next_gap > 0):
            share = gap / (gap - next_gap)
            crossed.append(Overtaking(math.exp(x + share * (next_x - x)), False, next_gap > 0))
    if crossed or len(common) < 2:
        return crossed
    factor, exponent = _fit({x: first[x] for x in common})
    other_factor, other_exponent = _fit({x: second[x] for x in common})
    if exponent == other_exponent:
        return []
    at = math.log(other_factor / factor) / (exponent - other_exponent)  # a logarithm: the crossing may be far off
    low, high = points[0][0], points[-1][0]
    near = 2 * low - high <= at < low or high < at <= 2 * high - low
    return [Overtaking(math.exp(at), True, exponent > other_exponent)] if near else []
