"""The metrics one sample at a time, in plain Python, as their definitions read."""

import math
from itertools import chain, combinations, permutations, product


def orders(relevance):
    """Every order of the tokens, largest first, in which equal tokens may stand."""
    groups = [[at for at, other in enumerate(relevance) if other == value] for value in sorted(set(relevance))[::-1]]
    for parts in product(*(permutations(group) for group in groups)):
        yield list(chain.from_iterable(parts))


def _expected(relevance, of_order):
    """The mean of a function of the order over all tie orders, which are as likely."""
    values = [of_order(order) for order in orders(relevance)]
    return sum(values) / len(values)


def pg(relevance, evidence):
    return _expected(relevance, lambda order: evidence[order[0]])


def pg2(relevance, evidence):
    return _expected(relevance, lambda order: any(evidence[token] for token in order[:2]))


def tied_tops(relevance, evidence):
    return float(relevance.count(max(relevance)) > 1)


def mrr(relevance, evidence):
    distinct = sorted(set(relevance))
    ranks = [len(relevance) - (distinct.index(value) + 1) + 1 for value in relevance]
    return 1 / min(rank for rank, inside in zip(ranks, evidence, strict=True) if inside)


def mrr_strict(relevance, evidence):
    ranks = [1 + sum(other > value for other in relevance) for value in relevance]
    return 1 / min(rank for rank, inside in zip(ranks, evidence, strict=True) if inside)


def rma(relevance, evidence):
    total = sum(value for value in relevance if value > 0)
    inside = sum(value for value, marked in zip(relevance, evidence, strict=True) if marked and value > 0)
    return inside / total if total else 0.0


def pta(relevance, evidence):
    return sum((value > 0) == marked for value, marked in zip(relevance, evidence, strict=True)) / len(relevance)


def iou(relevance, evidence):
    marked = {token for token, inside in enumerate(evidence) if inside}

    def overlap(order):
        top = {token for token in order[: len(marked)] if relevance[token] > 0}
        return len(top & marked) / len(top | marked)

    return _expected(relevance, overlap)


def iou_positive(relevance, evidence):
    positive = {token for token, value in enumerate(relevance) if value > 0}
    marked = {token for token, inside in enumerate(evidence) if inside}
    return len(positive & marked) / len(positive | marked)


def iou_soft(relevance, evidence):
    positive = [max(value, 0.0) for value in relevance]
    shares = [value / max(positive) for value in positive] if any(positive) else positive
    pairs = list(zip(shares, map(float, evidence), strict=True))
    return sum(map(min, pairs)) / sum(map(max, pairs))


def rra(relevance, evidence):
    size = sum(evidence)
    return _expected(relevance, lambda order: sum(evidence[token] for token in order[:size]) / size)


def ap(relevance, evidence):
    """Sum over thresholds of the gain in recall times precision."""
    total = recall = 0.0
    for threshold in sorted(set(relevance), reverse=True):
        kept = [inside for value, inside in zip(relevance, evidence, strict=True) if value >= threshold]
        total += (sum(kept) / sum(evidence) - recall) * sum(kept) / len(kept)
        recall = sum(kept) / sum(evidence)
    return total


def dot(relevance, evidence):
    positive = [max(value, 0.0) for value in relevance]
    return sum(value * inside for value, inside in zip(positive, evidence, strict=True)) / (sum(positive) or 1)


def dot_softmax(relevance, evidence):
    exponentials = [math.exp(value) for value in relevance]
    inside = sum(value * marked for value, marked in zip(exponentials, evidence, strict=True))
    return inside / sum(exponentials)


def shuffled(metric):
    """The mean of a metric over all places of the evidence, which are as likely as all orders of the values."""

    def mean(relevance, evidence):
        every, tokens = [], range(len(relevance))
        for places in combinations(tokens, sum(evidence)):
            every.append(metric(relevance, [token in places for token in tokens]))
        return sum(every) / len(every)

    return mean


rma_shuffled, pta_shuffled, iou_positive_shuffled = shuffled(rma), shuffled(pta), shuffled(iou_positive)


def iou_shuffled(relevance, evidence):
    """Of equal values every order counts alike, so that one order of them stands for all."""
    return shuffled(iou)([value * (1 + 1e-9 * at) for at, value in enumerate(relevance)], evidence)


METRICS = {
    function.__name__: function
    for function in (
        pg,
        pg2,
        tied_tops,
        mrr,
        mrr_strict,
        rma,
        pta,
        iou,
        iou_positive,
        iou_soft,
        rra,
        ap,
        dot,
        dot_softmax,
    )
} | {
    "rma_shuffled": rma_shuffled,
    "pta_shuffled": pta_shuffled,
    "iou_shuffled": iou_shuffled,
    "iou_positive_shuffled": iou_positive_shuffled,
}
