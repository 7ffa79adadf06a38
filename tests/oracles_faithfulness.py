"""Flipping one token at a time, in plain Python, as AttnLRP B.2 and NormXLogit read."""

import math


def morf(relevance, ties, chosen):
    """Tokens in the order of flipping: descending relevance, equal ones by their place in `ties`."""
    return sorted((t for t in range(len(relevance)) if chosen[t]), key=lambda t: (-relevance[t], ties[t]))


def lerf(relevance, ties, chosen):
    return morf(relevance, ties, chosen)[::-1]


def flipping(f, order, counts=None):
    """f after 0, 1, ... N tokens of `order` are gone."""
    return [f(frozenset(order[:k])) for k in (range(len(order) + 1) if counts is None else counts)]


def insertion(f, order):
    """f after 0, 1, ... N tokens of `order` are back, starting without any."""
    return [f(frozenset(order) - frozenset(order[:n])) for n in range(len(order) + 1)]


def area(curve):
    """Trapezoids over k / N."""
    steps = len(curve) - 1
    return sum((curve[k] + curve[k + 1]) / 2 / steps for k in range(steps))


def equation_31(f, relevance, ties, chosen):
    """Faithfulness as AttnLRP prints it: insertion MoRF minus insertion LeRF."""
    orders = (order(relevance, ties, chosen) for order in (morf, lerf))
    most, least = (area(insertion(f, order)) for order in orders)
    return most - least


def aopc(probability, order, shares):
    """Mean over shares of what is lost without the top of `order`."""
    gone = [frozenset(order[: math.floor(share * len(order) / 100)]) for share in shares]
    return sum(probability(frozenset()) - probability(top) for top in gone) / len(shares)


def sufficiency(probability, order, shares):
    """The same with all of `order` gone but its top."""
    kept = [frozenset(order[math.floor(share * len(order) / 100) :]) for share in shares]
    return sum(probability(frozenset()) - probability(rest) for rest in kept) / len(shares)


def pearson(x, y):
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    products = sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True))
    return products / math.sqrt(sum((a - mean_x) ** 2 for a in x) * sum((b - mean_y) ** 2 for b in y))
