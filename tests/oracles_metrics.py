"""The metrics one sample at a time, in plain Python, as their definitions read."""


def pg(relevance, evidence):
    return float(evidence[relevance.index(max(relevance))])


def pg2(relevance, evidence):
    largest_first = sorted(range(len(relevance)), key=lambda token: (-relevance[token], token))
    return float(any(evidence[token] for token in largest_first[:2]))


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


METRICS = {function.__name__: function for function in (pg, pg2, mrr, mrr_strict, rma, pta)}
