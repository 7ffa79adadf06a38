"""Metrics of one sample against its evidence, written from their definitions: slow, in float64, one token at a time.

Every function takes the relevance of the chosen tokens, `r` [N], and the evidence among them, `g` [N] of booleans, and
gives a number between 0 and 1. Sources: Close Look 4 (pg, mrr, rma, pta), its first version (pg2), Ferrando et al. 2023
(ranks of mrr), Arras et al. 2022 (rra), AttnLRP 4.1 (readings of iou), NormXLogit 5 (ap, dot).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from tests.recompute import statistics

Metric = Callable[[np.ndarray, np.ndarray], float]


def tied_top(r: np.ndarray, g: np.ndarray, k: int) -> tuple[int, int, int, int]:
    """(evidence surely among the first `k`, places left to tied tokens, tied tokens, evidence among them)."""
    threshold = sorted(r, reverse=True)[k - 1]
    above, tied = r > threshold, r == threshold
    return int((above & g).sum()), k - int(above.sum()), int(tied.sum()), int((tied & g).sum())


def evidence_in_top(r: np.ndarray, g: np.ndarray, k: int) -> list[float]:
    """Probability of h = 0 ... k evidence tokens among the first `k`; orders of tied tokens are equally likely."""
    sure, left, tied, evidence = tied_top(r, g, k)
    ways = [math.comb(evidence, h) * math.comb(tied - evidence, left - h) if h <= left else 0 for h in range(k + 1)]
    total = math.comb(tied, left)
    return [0.0] * sure + [way / total for way in ways][: k + 1 - sure]


def pg(r: np.ndarray, g: np.ndarray) -> float:
    """Pointing game: the most relevant token is evidence."""
    return evidence_in_top(r, g, 1)[1]


def pg2(r: np.ndarray, g: np.ndarray) -> float:
    """One of the two most relevant tokens is evidence."""
    return 1 - evidence_in_top(r, g, min(2, len(r)))[0]


def rra(r: np.ndarray, g: np.ndarray) -> float:
    """Relevance rank accuracy: the share of evidence among as many most relevant tokens."""
    size = int(g.sum())
    return sum(h * p for h, p in enumerate(evidence_in_top(r, g, size))) / size


def iou(r: np.ndarray, g: np.ndarray) -> float:
    """Evidence against as many most relevant tokens, of which only those of positive relevance count."""
    size, positive = int(g.sum()), int((r > 0).sum())
    if positive <= size:  # ties are all within or without
        chosen = r > 0
        return float((chosen & g).sum() / (chosen | g).sum())
    return sum(p * h / (2 * size - h) for h, p in enumerate(evidence_in_top(r, g, size)))


def mrr(r: np.ndarray, g: np.ndarray) -> float:
    """One over the rank of the best evidence, ranks counted as n - dense rank + 1."""
    distinct = sorted(set(r.tolist()))
    ranks = [len(r) - (distinct.index(value) + 1) + 1 for value in r[g].tolist()]
    return 1 / min(ranks)


def mrr_strict(r: np.ndarray, g: np.ndarray) -> float:
    """One over the rank of the best evidence, where a rank counts the tokens above alone."""
    return 1 / (1 + int((r > r[g].max()).sum()))


def rma(r: np.ndarray, g: np.ndarray) -> float:
    """The share of positive relevance that lies on evidence; 0 where none is positive."""
    positive = [max(value, 0.0) for value in r.tolist()]
    total = math.fsum(positive)
    return math.fsum(value for value, inside in zip(positive, g, strict=True) if inside) / total if total else 0.0


def pta(r: np.ndarray, g: np.ndarray) -> float:
    """The share of tokens whose sign is right: positive on evidence, not positive elsewhere."""
    return float(np.mean((r > 0) == g))


def iou_positive(r: np.ndarray, g: np.ndarray) -> float:
    return float(((r > 0) & g).sum() / ((r > 0) | g).sum())


def iou_soft(r: np.ndarray, g: np.ndarray) -> float:
    """The sum of minima over the sum of maxima of evidence and positive relevance over its largest."""
    scaled = np.maximum(r, 0)
    scaled = scaled / scaled.max() if scaled.max() > 0 else scaled
    return float(np.minimum(scaled, g).sum() / np.maximum(scaled, g).sum())


def ap(r: np.ndarray, g: np.ndarray) -> float:
    """Average precision, the sum of (R_k - R_k-1) P_k over thresholds: equal tokens share one."""
    steps = []
    for threshold in sorted(set(r.tolist()), reverse=True):
        chosen = r >= threshold
        steps.append(((chosen & g).sum() / g.sum(), (chosen & g).sum() / chosen.sum()))
    recalls = [0.0, *(recall for recall, _ in steps)]
    return float(sum((recalls[at + 1] - recalls[at]) * precision for at, (_, precision) in enumerate(steps)))


def dot(r: np.ndarray, g: np.ndarray) -> float:
    """Evidence times relevance, whose positive part is divided by its sum."""
    return rma(r, g)


def dot_softmax(r: np.ndarray, g: np.ndarray) -> float:
    """Evidence times the softmax of relevance."""
    weights = np.exp(r - r.max())
    return float(weights[g].sum() / weights.sum())


def tied_tops(r: np.ndarray, g: np.ndarray) -> float:
    """Several tokens share the largest relevance."""
    return float((r == r.max()).sum() > 1)


def rma_shuffled(r: np.ndarray, g: np.ndarray) -> float:
    """The mean of `rma` over all places of the evidence."""
    return float(g.mean()) if (r > 0).any() else 0.0


def pta_shuffled(r: np.ndarray, g: np.ndarray) -> float:
    """Agreement of two independent marks: both, or neither."""
    positive, marked = (r > 0).mean(), g.mean()
    return float(positive * marked + (1 - positive) * (1 - marked))


def iou_shuffled(r: np.ndarray, g: np.ndarray) -> float:
    """The mean overlap of the evidence and as many tokens drawn, no more than are positive."""
    return statistics.overlap(len(r), int(g.sum()), int(min((r > 0).sum(), g.sum())))


def iou_positive_shuffled(r: np.ndarray, g: np.ndarray) -> float:
    return statistics.overlap(len(r), int(g.sum()), int((r > 0).sum()))


_SAME = (mrr, mrr_strict, rma, pta, iou_positive, iou_soft, ap, dot, dot_softmax)
_SHUFFLED = (rma_shuffled, pta_shuffled, iou_shuffled, iou_positive_shuffled)
SPECIFIED: dict[str, Metric] = {
    metric.__name__: metric for metric in (pg, pg2, tied_tops, iou, rra, *_SAME, *_SHUFFLED)
}
