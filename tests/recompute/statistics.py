"""Means, intervals, tests and chance, each written from its definition and apart from the product's.

Numbers that the product draws at random are given as the range in which they lie within 4 standard errors of the
Monte Carlo, both the product's and ours; what is no draw is a range of one number.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import combinations, product

import numpy as np
from scipy import stats

ERRORS = 4  # standard errors of the Monte Carlo
PLACES = 2000  # of evidence, beyond which they are drawn
CHANCE_DRAWS = 400  # of random relevance by the product, where chance has no closed form
OURS = 20_000  # resamples and sign flips
LEVELS = (0.025, 0.975)
BOUND = 1e-6  # a bounded metric lies on its bound up to single precision


@dataclass(frozen=True)
class Range:
    """A number that is `least` to `most`; `value` is our estimate."""

    value: float
    least: float
    most: float

    @classmethod
    def exact(cls, value: float) -> Range:
        return cls(float(value), float(value), float(value))

    def within(self, least: float, most: float) -> Range:
        return Range(*(min(max(end, least), most) for end in (self.value, self.least, self.most)))

    def times(self, factor: float) -> Range:
        ends = sorted((self.least * factor, self.most * factor))
        return Range(self.value * factor, *ends)

    def plus(self, other: Range) -> Range:
        return Range(self.value + other.value, self.least + other.least, self.most + other.most)

    def widened(self, slack: float) -> Range:
        return Range(self.value, self.least - slack, self.most + slack)


Interval = tuple[Range, Range] | None


@cache
def resamples(n: int) -> np.ndarray:
    """The share [OURS, n] of draws that each of `n` samples has in each resample."""
    return np.random.default_rng(27).multinomial(n, np.full(n, 1 / n), OURS) / n


@cache
def flips(n: int) -> np.ndarray:
    """Random signs [OURS, n]; all of them [2^n, n] for few samples."""
    if n <= 13:
        return np.array(list(product((-1.0, 1.0), repeat=n)))
    return np.random.default_rng(27).choice((-1.0, 1.0), size=(OURS, n))


def quantile_range(values: np.ndarray, level: float, draws: int) -> Range:
    """The `level` quantile that `draws` draws have, given OURS of them."""
    levels = [level, *share_range(level, 1 / (1 / draws + 1 / OURS))]
    return Range(*np.quantile(values, levels).tolist())


@cache
def share_range(share: float, draws: float) -> tuple[float, float]:
    """Clopper and Pearson's interval of a share seen in `draws` draws; each tail is a normal's past ERRORS."""
    rare = stats.norm.sf(ERRORS)
    hits = share * draws
    low = 0.0 if hits <= 0 else float(stats.beta.ppf(rare, hits, draws - hits + 1))
    return low, 1.0 if hits >= draws else float(stats.beta.isf(rare, hits + 1, draws - hits))


def percentile(values: np.ndarray, draws: int) -> Interval:
    """The percentile bootstrap of the mean of `values`."""
    if len(values) < 2:
        return (Range.exact(values.mean()), Range.exact(values.mean())) if len(values) else None
    means = resamples(len(values)) @ values
    low, high = (quantile_range(means, level, draws) for level in LEVELS)
    return low, high


def percentile_of(statistic, n: int, draws: int) -> Interval:
    """The percentile bootstrap of any statistic of `n` samples, which takes resampled weights [OURS, n]."""
    values = statistic(resamples(n))
    values = values[np.isfinite(values)]
    low, high = (quantile_range(values, level, draws) for level in LEVELS)
    return low, high


def clopper_pearson(successes: float, n: float) -> tuple[float, float]:
    """The exact interval of a share, by quantiles of beta distributions; `successes` need not be whole."""
    low = 0.0 if successes <= 0 else float(stats.beta.ppf(LEVELS[0], successes, n - successes + 1))
    high = 1.0 if successes >= n else float(stats.beta.ppf(LEVELS[1], successes + 1, n - successes))
    return low, high


def bootstrap_t(values: np.ndarray, draws: int) -> Interval:
    """The interval of a mean by quantiles of resampled t statistics; a quarter of the error is the least spread."""
    n, mean = len(values), values.mean()
    error = values.std(ddof=1) / math.sqrt(n)
    if error == 0:
        return Range.exact(mean), Range.exact(mean)
    weights = resamples(n)
    means = weights @ values
    spread = np.sqrt(np.maximum(weights @ values**2 - means**2, 0) / (n - 1))
    t = (means - mean) / np.maximum(spread, error / 4)
    ends = [quantile_range(t, level, draws).times(-error).plus(Range.exact(mean)) for level in reversed(LEVELS)]
    return ends[0], ends[1]


def specified_interval(values: np.ndarray, draws: int, bounds: tuple[float, float] | None) -> Interval:
    """Clopper-Pearson of bounded values at their effective number, else bootstrap-t."""
    if not len(values):
        return None
    if bounds is not None:
        least, most = bounds
        low, high = of_shares((values - least) / (most - least))
        return Range.exact(least + (most - least) * low), Range.exact(least + (most - least) * high)
    if len(values) < 2:
        return None
    return bootstrap_t(values, draws) if len(values) >= 10 else student(values)


def of_shares(values: np.ndarray) -> tuple[float, float]:
    """Korn and Graubard's interval of a mean in [0, 1], with half a pseudo-observation at each bound."""
    n, p = len(values), float(values.mean())
    if p <= BOUND or p >= 1 - BOUND:
        return clopper_pearson(round(p) * n, n)
    spread = float(((values - p) ** 2).sum()) + (p * p + (1 - p) ** 2) / 2
    effective = n * p * (1 - p) / (spread / (n - 0.5))
    effective = min(max(effective, 1.0), 10.0 * n)
    return clopper_pearson(p * effective, effective)


def student(values: np.ndarray) -> tuple[Range, Range]:
    """Student's interval of a mean."""
    half = float(stats.t.ppf(LEVELS[1], len(values) - 1) * values.std(ddof=1) / math.sqrt(len(values)))
    return Range.exact(values.mean() - half), Range.exact(values.mean() + half)


def of_differences(values: np.ndarray, reach: float | None = None) -> Interval:
    """Student's interval of paired differences, within their reach; where all are equal, of what n may have missed."""
    if len(values) < 2:
        return None
    low, high = (end.value for end in student(values))
    mean = float(values.mean())
    if reach is not None:
        if values.std() <= 1e-12 * max(1.0, abs(mean)):
            missed = clopper_pearson(0.0, len(values))[1]
            low, high = mean - missed * (mean + reach), mean + missed * (reach - mean)
        low, high = max(low, -reach), min(high, reach)
    return Range.exact(low), Range.exact(high)


def sign_flip(differences: np.ndarray, draws: int, sizes: np.ndarray | None = None) -> list[Range]:
    """Two-sided p of paired differences [n, tests] under random signs, as `draws` of them have it.

    `sizes` [tests] are the sums of what was subtracted, of which a millionth is rounding.
    """
    n = len(differences)
    observed = np.abs(differences.sum(0))
    slack = 1e-6 * (np.abs(differences).sum(0) if sizes is None else sizes)  # equal on paper, single precision or not
    hits = (np.abs(flips(n) @ differences) >= observed - slack).mean(0)
    return [p_range(p, n, draws) for p in hits.tolist()]


def p_range(p: float, n: int, draws: int) -> Range:
    """The p that `draws` flips give where `p` of our flips of `n` samples reach what was observed."""
    ours = len(flips(n))
    least, most = share_range(p, draws if ours == 2**n else 1 / (1 / draws + 1 / ours))
    return Range(p, least, min(most + 1 / (draws + 1), 1.0))


def is_tested(n: int) -> bool:
    """True for at least six samples."""
    return n >= 6


def max_t(values: np.ndarray, draws: int) -> dict[tuple[int, int], Range]:
    """Adjusted p of every pair of columns of `values` [n, M] by step-down max-T under random signs; 1 of few rows."""
    pairs, n = list(combinations(range(values.shape[1]), 2)), len(values)
    if not is_tested(n):
        return dict.fromkeys(pairs, Range.exact(1.0))
    sizes = np.abs(values).sum(0)
    observed, flipped = {}, {}
    for a, b in pairs:
        difference = values[:, a] - values[:, b]
        length, slack = np.linalg.norm(difference), 1e-6 * max(sizes[a], sizes[b])
        rounded = length <= slack  # equal on paper, single precision or not
        observed[a, b] = 0.0 if rounded else (abs(difference.sum()) - slack) / length
        flipped[a, b] = np.zeros(len(flips(n))) if rounded else np.abs(flips(n) @ (difference / length))
    ps, largest = {}, np.zeros(len(flips(n)))
    for pair in sorted(pairs, key=observed.__getitem__):  # from the smallest statistic up
        largest = np.maximum(largest, flipped[pair])
        ps[pair] = float((largest >= observed[pair]).mean())
    least = 0.0
    for pair in sorted(pairs, key=observed.__getitem__, reverse=True):
        least = ps[pair] = max(least, ps[pair])
    return {pair: p_range(ps[pair], n, draws) for pair in pairs}


def hits_p(total: float, chances: np.ndarray) -> float:
    """Two-sided p of so many hits, where each sample is hit by its own chance: one sample after the other."""
    probability = np.array([1.0])
    for chance in chances:
        probability = np.append(probability, 0.0) * (1 - chance) + np.append(0.0, probability) * chance
    counts = np.arange(len(probability))
    tails = (probability[counts >= total - 1e-6].sum(), probability[counts <= total + 1e-6].sum())
    return min(1.0, 2 * min(tails))


def holm(ps: list[Range]) -> list[Range]:
    """Adjusted p values; monotone in each of them, so ranges go through."""
    ends = [_holm([getattr(p, end) for p in ps]) for end in ("value", "least", "most")]
    return [Range(*values) for values in zip(*ends, strict=True)]


def _holm(ps: list[float]) -> list[float]:
    adjusted, largest = [0.0] * len(ps), 0.0
    for rank, at in enumerate(sorted(range(len(ps)), key=lambda at: ps[at])):
        largest = max(largest, min(1.0, (len(ps) - rank) * ps[at]))
        adjusted[at] = largest
    return adjusted


def trapezoids(y: np.ndarray, x: np.ndarray) -> float:
    return math.fsum((x[at + 1] - x[at]) * (y[at] + y[at + 1]) / 2 for at in range(len(x) - 1))


def chance(metric: str, n: int, g: int) -> float | None:
    """The expectation of a metric under iid symmetric continuous relevance, `g` evidence tokens among `n`."""
    metric = metric.removesuffix("_shuffled")
    ranks = [math.comb(n - first, g - 1) / math.comb(n, g) for first in range(1, n - g + 2)]  # P(best evidence at rank)
    if metric in ("pg", "rra", "dot_softmax"):
        return g / n
    if metric == "tied_tops":
        return 0.0
    if metric == "pg2":
        return 1 - math.comb(n - g, 2) / math.comb(n, 2) if n > 1 else float(g > 0)
    if metric in ("rma", "dot"):
        return (1 - 2.0**-n) * g / n
    if metric == "pta":
        return 0.5
    if metric in ("mrr", "mrr_strict"):
        return math.fsum(p / rank for rank, p in enumerate(ranks, start=1))
    if metric == "ap":
        return math.fsum(((k - 1) * (g - 1) / (n - 1) + 1 if n > 1 else 1) / k for k in range(1, n + 1)) / n
    if metric == "iou":
        return math.fsum(_binomial(n, k) * overlap(n, g, min(k, g)) for k in range(n + 1))
    if metric == "iou_positive":
        return math.fsum(_binomial(n, k) * overlap(n, g, k) for k in range(n + 1))
    return None


def drawn_chance(metric: Callable[[np.ndarray, np.ndarray], float], n: int, g: int) -> tuple[float, float]:
    """The mean and the variance of a metric of random relevance."""
    rng, marks = np.random.default_rng([27, n, g]), np.arange(n) < g
    values = np.array([metric(rng.uniform(-1, 1, n), marks) for _ in range(PLACES)])
    return float(values.mean()), float(values.var(ddof=1))


def permutation_chance(metric: Callable[[np.ndarray, np.ndarray], float], r: np.ndarray, g: np.ndarray) -> Range:
    """The mean of a metric over all places that the evidence can have, or over drawn ones, as a method's chance."""
    n, size = len(r), int(g.sum())
    if math.comb(n, size) <= PLACES:
        places = [np.isin(np.arange(n), chosen) for chosen in combinations(range(n), size)]
        return Range.exact(float(np.mean([metric(r, evidence) for evidence in places])))
    rng = np.random.default_rng(27)
    drawn = np.array([metric(r, rng.permutation(g)) for _ in range(PLACES)])
    error = ERRORS * drawn.std(ddof=1) * math.sqrt(2 / PLACES)
    return Range(drawn.mean(), drawn.mean() - error, drawn.mean() + error)


def top_group(values: np.ndarray, draws: int, level: float = 0.05) -> list[int]:
    """Columns of `values` [samples, methods] that no other beats by `max_t`."""
    means, beaten = values.mean(0), set()
    for (a, b), p in max_t(values, draws).items():
        if p.value < level:
            beaten.add(b if means[a] > means[b] else a)
    return [at for at in range(values.shape[1]) if at not in beaten]


def smallest_difference(values: np.ndarray) -> float:
    """The difference of columns of `values` [n, M] that a t test finds with a power of 0.8, its level over all pairs.

    By the median spread of the pairs; NaN of too few rows for a test, or of a single column.
    """
    pairs, n = list(combinations(range(values.shape[1]), 2)), len(values)
    spreads = [(values[:, a] - values[:, b]).std(ddof=1) for a, b in pairs] if n > 1 else []
    if not spreads or not is_tested(n):
        return math.nan
    reach = stats.t.isf(0.025 / len(spreads), n - 1) + stats.t.isf(0.2, n - 1)
    return float(reach * np.median(spreads) / math.sqrt(n))


def _binomial(n: int, k: int) -> float:
    return math.comb(n, k) / 2**n


def overlap(n: int, g: int, k: int) -> float:
    """The mean IoU of `g` evidence tokens and `k` tokens drawn from `n`."""
    hits = range(max(0, g + k - n), min(g, k) + 1)
    return math.fsum(math.comb(g, h) * math.comb(n - g, k - h) / math.comb(n, k) * h / (g + k - h) for h in hits)
