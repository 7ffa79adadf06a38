"""How a measured number grows: the exponent that a power law has, and where two curves cross. No torch here."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

Curve = Mapping[float, float]  # by what grows, such as tokens: a positive number


@dataclass(frozen=True)
class Overtaking:
    """Where a curve that lay below another comes to lie above it, or the reverse."""

    at: float
    extrapolated: bool  # beyond what was measured, by both power laws
    above: bool  # whether the first curve is the higher one behind it


def power_law(curve: Curve) -> tuple[float, float] | None:
    """(factor, exponent) of `factor * x ** exponent`, by least squares of the logarithms; None of fewer than two."""
    if len(curve) < 2:
        return None
    fit = statistics.linear_regression(*zip(*((math.log(x), math.log(y)) for x, y in curve.items()), strict=True))
    return math.exp(fit.intercept), fit.slope


def crossings(first: Curve, second: Curve) -> list[Overtaking]:
    """Where both are measured, straight lines between the logarithms; where these never cross, the power laws may.

    Nothing is said of what lies further out than the measured range is wide.
    """
    common = sorted(set(first) & set(second))
    gaps = [math.log(first[x] / second[x]) for x in common]
    known = []
    for (x, gap), (next_x, next_gap) in pairwise(zip(common, gaps, strict=True)):
        if (gap > 0) != (next_gap > 0):
            share = gap / (gap - next_gap)
            at = math.exp(math.log(x) + share * (math.log(next_x) - math.log(x)))
            known.append(Overtaking(at, False, next_gap > 0))
    if known or len(common) < 2:
        return known
    law, other = power_law({x: first[x] for x in common}), power_law({x: second[x] for x in common})
    assert law is not None
    assert other is not None
    (factor, exponent), (other_factor, other_exponent) = law, other
    if exponent == other_exponent:
        return []
    at = math.log(other_factor / factor) / (exponent - other_exponent)  # a logarithm: what is parallel meets far off
    return [Overtaking(math.exp(at), True, exponent > other_exponent)] if _beyond(at, common) else []


def _beyond(at: float, measured: list[float]) -> bool:
    """Whether it (a logarithm) lies outside of what was measured, and no further out than that is wide."""
    low, high = math.log(measured[0]), math.log(measured[-1])
    return 2 * low - high <= at < low or high < at <= 2 * high - low
