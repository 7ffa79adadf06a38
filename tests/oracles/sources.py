"""Sources of answers by slow, obvious loops in float64, from the formulas."""

from __future__ import annotations

import math
from decimal import Decimal, getcontext
from itertools import product

import numpy as np


def every_mask(units: int) -> np.ndarray:
    """All masks [2^n, n]."""
    return np.array(list(product([False, True], repeat=units)))


def answer_odds(log_odds) -> float:
    """y of an answer from the log-odds of its tokens, in as many digits as it takes."""
    getcontext().prec = _digits(log_odds)
    probability = Decimal(1)
    for value in log_odds:
        probability /= 1 + (-Decimal(float(value))).exp()
    return float((probability / (1 - probability)).ln())


def _digits(log_odds) -> int:
    """Enough for probabilities that differ from 1 by exp(-l)."""
    return 40 + int(max(map(abs, map(float, log_odds))))


def log_probability(log_odds) -> float:
    getcontext().prec = _digits(log_odds)
    return float(sum(-(1 + (-Decimal(float(value))).exp()).ln() for value in log_odds))


def ranks(values) -> list[float]:
    """Ranks from 1, equal values at the mean of theirs."""
    return [
        sum(other < value for other in values) + (sum(other == value for other in values) + 1) / 2 for value in values
    ]


def spearman(x, y) -> float:
    a, b = np.array(ranks(x)), np.array(ranks(y))
    a, b = a - a.mean(), b - b.mean()
    return float((a * b).sum() / math.sqrt((a * a).sum() * (b * b).sum()))


def lds(relevance, kept, worth) -> float:
    predicted = [sum(value for value, stays in zip(relevance, mask, strict=True) if stays) for mask in kept]
    return spearman(predicted, worth)


def infidelity(relevance, kept, worth, full) -> float:
    """The least of E[(b x - d)^2] / E[d^2] over b >= 0, by a fine search."""
    x = np.array([sum(v for v, stays in zip(relevance, mask, strict=True) if not stays) for mask in kept])
    d = full - np.array(worth)
    b = np.concatenate([[0.0], np.geomspace(1e-4, 1e4, 200_001)])
    errors = (b * b * (x * x).mean() - 2 * b * (x * d).mean() + (d * d).mean()) / (d * d).mean()
    return float(errors.min())


def lasso(kept, outcome, alpha: float) -> np.ndarray:
    """Weights of ContextCite: coordinate descent for (1/2m) |y - Xw - c|^2 + alpha |w| on standardised columns.

    Columns that do not vary are left as they are, as scikit-learn's scaler does; weights are scaled back.
    """
    x, y = np.array(kept, float), np.array(outcome, float)
    mean, spread = x.mean(axis=0), x.std(axis=0)
    spread[spread == 0] = 1.0
    x, y = (x - mean) / spread, y - y.mean()
    m, n = x.shape
    weights = np.zeros(n)
    for _ in range(20_000):
        before = weights.copy()
        for unit in range(n):
            size = (x[:, unit] ** 2).sum() / m
            if size == 0:
                continue
            rest = y - x @ weights + x[:, unit] * weights[unit]
            pull = (x[:, unit] * rest).sum() / m
            weights[unit] = math.copysign(max(abs(pull) - alpha, 0.0), pull) / size
        if np.abs(weights - before).max() < 1e-14:
            break
    return weights / spread


def shapley(worth_of, units: int) -> np.ndarray:
    """Shapley values by their definition; `worth_of` a frozenset of the units that stay."""
    values = np.zeros(units)
    for unit in range(units):
        others = [other for other in range(units) if other != unit]
        for mask in product([False, True], repeat=units - 1):
            some = frozenset(other for other, stays in zip(others, mask, strict=True) if stays)
            size = len(some)
            weight = math.factorial(size) * math.factorial(units - size - 1) / math.factorial(units)
            values[unit] += weight * (worth_of(some | {unit}) - worth_of(some))
    return values
