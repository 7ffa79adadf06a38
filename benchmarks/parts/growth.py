"""Growth of measured numbers: the exponent of a power law, and the points where two curves cross. Needs no torch."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

Curve = Mapping[float, float]  # by what grows, such as tokens: a positive number


@dataclass(frozen=True)
class Overtaking:
    """The point where a curve that lay below another comes to lie above it, or the reverse."""

    at: float
    extrapolated: bool  # beyond the measured range, by both power laws
    above: bool  # the first curve is the higher one behind the point


def power_law(curve: Curve) -> tuple[float, float] | None:
    """(factor, exponent) of `factor * x ** exponent`, by least squares of the logarithms; None of fewer than two."""
    return _fit(curve) if len(curve) > 1 else None


def _fit(curve: Curve) -> tuple[float, float]:
    line = statistics.linear_regression([math.log(x) for x in curve], [math.log(y) for y in curve.values()])
    return math.exp(line.intercept), line.slope


def crossings(first: Curve, second: Curve) -> list[Overtaking]:
    """Points where two curves cross, as straight lines between logarithms; where these never do, as power laws.

    Crossings further outside the measured range than that is wide are left out.
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
    at = math.log(other_factor / factor) / (exponent - other_exponent)  # a logarithm: parallel curves meet far off
    low, high = points[0][0], points[-1][0]
    near = 2 * low - high <= at < low or high < at <= 2 * high - low
    return [Overtaking(math.exp(at), True, exponent > other_exponent)] if near else []
