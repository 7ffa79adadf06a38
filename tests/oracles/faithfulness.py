"""Flipping one token at a time, in plain Python, as AttnLRP B.2 and NormXLogit read."""

import hashlib
import math

import numpy as np


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


def replacements(texts, kept, ids, special, draws, seed):
    """Tokens in place of those of a sample, draw by draw, from lists of all that follows each left neighbour.

    `texts` are (ids, special mask) of the whole task. An occurrence is picked by one random number for each draw and
    position; special tokens and `kept` stay.
    """
    follows, every = {}, []
    for text, mask in texts:
        for at, token in enumerate(text):
            if not mask[at] and token not in kept:
                follows.setdefault(text[at - 1] if at else "start", []).append(token)
                every.append(token)
    digest = hashlib.sha256(f"resample:{seed}:{list(ids)}".encode()).digest()
    chances = np.random.default_rng(int.from_bytes(digest[:8])).random((draws, len(ids)))
    drawn = []
    for chance in chances.tolist():
        row = []
        for at, token in enumerate(ids):
            left = ids[at - 1] if at else "start"
            others = [other for other in follows.get(left, []) if other != token]
            others = sorted(others or [other for other in every if other != token])
            stays = special[at] or token in kept
            row.append(token if stays else others[math.floor(chance[at] * len(others))])
        drawn.append(row)
    return drawn


def mean_over_draws(numbers):
    """(logit, log probability, correct, foil's logit) of a state from those of its draws."""
    logits, log_probabilities, correct, foils = zip(*numbers, strict=True)
    probability = sum(map(math.exp, log_probabilities)) / len(numbers)
    right = 2 * sum(correct) > len(numbers)
    return sum(logits) / len(numbers), math.log(probability), float(right), sum(foils) / len(numbers)
