"""The exact chance of every metric: its mean over relevance that knows nothing.

Random relevance is independent, symmetric and continuous, so that every order of the tokens is as likely and each is
positive or not like a coin. The functions below take n tokens, g of them evidence. Where a metric depends on the sizes
of relevance too, its chance is the mean over drawn uniform relevance, with a standard error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache

import numpy as np
import pyarrow as pa
from scipy.special import comb
from scipy.stats import binom

from evaluation.scoring.metrics import Metric, mean_overlap, score
from evaluation.scoring.samples import Masks

DRAWS = 400  # of relevance, for metrics without a closed form


def _share(n: int, g: int) -> float:
    return g / n


def _top_two(n: int, g: int) -> float:
    """One minus the chance that two tokens drawn without replacement are both no evidence."""
    return float(1 - comb(n - g, 2) / comb(n, 2)) if n > 1 else 1.0


def _mass(n: int, g: int) -> float:
    """g / n where any relevance is positive, by symmetry among tokens; 0 elsewhere."""
    return (1 - 2.0**-n) * g / n


def _reciprocal_rank(n: int, g: int) -> float:
    """Over the rank r of the first evidence token, of probability C(n - r, g - 1) / C(n, g)."""
    likely, none_before = [], 1.0
    for rank in range(1, n - g + 2):  # tokens before it are no evidence, drawn without replacement
        likely.append(none_before * g / (n - rank + 1))
        none_before *= (n - g - rank + 1) / (n - rank + 1)
    return float(np.array(likely) @ (1 / np.arange(1, n - g + 2)))


def _precision(n: int, g: int) -> float:
    """Over the rank k of an evidence token: of the k - 1 before it, (k - 1)(g - 1) / (n - 1) are evidence."""
    before = np.arange(n)
    evidence = before * (g - 1) / max(1, n - 1)
    return float(((1 + evidence) / (before + 1)).mean())


@cache
def _overlap(n: int, g: int, most: int) -> float:
    """IoU of the evidence and the largest positive tokens, at most `most`: hypergeometric over binomial positives."""
    total = 0.0
    for positive, likely in enumerate(binom.pmf(np.arange(n + 1), n, 0.5)):
        total += float(likely) * mean_overlap(n, g, min(positive, most))
    return total


#: The chance of a sample of n tokens, g of them evidence, by metric.
EXACT: dict[str, Callable[[int, int], float]] = {
    "pg": _share,
    "pg2": _top_two,
    "tied_tops": lambda n, g: 0.0,
    "mrr": _reciprocal_rank,
    "mrr_strict": _reciprocal_rank,
    "rma": _mass,
    "pta": lambda n, g: 0.5,
    "iou": lambda n, g: _overlap(n, g, g),
    "iou_positive": lambda n, g: _overlap(n, g, n),
    "rra": _share,
    "ap": _precision,
    "dot": _mass,
    "dot_softmax": _share,  # shares sum to 1 over tokens that are alike
}
EXACT |= {f"{name}_shuffled": EXACT[name] for name in ("rma", "pta", "iou", "iou_positive")}


@dataclass(frozen=True)
class Chance:
    """The chance of each sample [N], and the standard error of their mean: 0 where it is exact."""

    values: np.ndarray
    error: float


def chance(metric: Metric, tokens: np.ndarray, evidence: np.ndarray, seed: int = 0) -> Chance:
    """The chance of samples with so many chosen `tokens` [N], `evidence` [N] of them, each at least 1.

    >>> from evaluation.scoring.metrics import METRICS
    >>> chance(METRICS["pg"], np.array([4, 5]), np.array([1, 1])).values
    array([0.25, 0.2 ])
    """
    pairs, of = np.unique(np.stack([tokens, evidence], axis=1), axis=0, return_inverse=True)
    of = of.ravel()
    exact = EXACT.get(metric.name)
    if exact is not None:
        return Chance(np.array([exact(int(n), int(g)) for n, g in pairs])[of], 0.0)
    drawn = [_drawn(metric, int(n), int(g), seed) for n, g in pairs]
    shares = np.bincount(of, minlength=len(pairs)) / max(1, len(of))
    variance = sum(share**2 * values.var(ddof=1) / DRAWS for share, values in zip(shares, drawn, strict=True))
    return Chance(np.array([values.mean() for values in drawn])[of], float(np.sqrt(variance)))


@dataclass(frozen=True)
class Floor:
    """The chance of a task's samples, which stands in place of a single draw of random relevance."""

    masks: Masks
    seed: int

    def in_place_of(self, scores: pa.Table, tokens: str, scope: str, metrics: Mapping[str, Metric]) -> pa.Table:
        """`scores` (sample_id, and a column for each of `metrics`) of one choice of tokens, with the chance in it.

        A sample without evidence among the chosen tokens keeps its scores.
        """
        [chosen] = [marks for *choice, marks in self.masks.choices() if choice == [tokens, scope]]
        sums = np.cumsum(np.stack([chosen, chosen & self.masks.evidence]), axis=1)
        ends = np.concatenate([np.zeros((2, 1), int), sums], axis=1)[:, self.masks.offsets]
        n, g = np.diff(ends, axis=1)[:, self.masks.samples.find(scores["sample_id"])]
        known = g > 0
        for name, metric in metrics.items():
            values = scores[name].to_numpy().astype(float)
            values[known] = chance(metric, n[known], g[known], self.seed).values
            scores = scores.set_column(scores.schema.get_field_index(name), name, pa.array(values))
        return scores


def _drawn(metric: Metric, n: int, g: int, seed: int) -> np.ndarray:
    """The metric of DRAWS rows of relevance, uniform between -1 and 1 as that of the method `random`."""
    relevance = np.random.default_rng([seed, n, g]).uniform(-1, 1, DRAWS * n)
    marks = np.tile(np.arange(n) < g, DRAWS)
    scores = score(relevance, marks, np.ones_like(marks), np.arange(DRAWS + 1) * n, {metric.name: metric})
    return scores.values[metric.name].astype(float)
