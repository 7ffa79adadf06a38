"""The table of agreement: rank correlations of methods over the tokens of the same samples."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from itertools import combinations

import numpy as np
from scipy.cluster.hierarchy import average, dendrogram

from tests.recompute.expected import UNDEFINED, Expected, number
from tests.recompute.facts import NAMES, Facts, Setting
from tests.recompute.statistics import Range

ROUNDING = 1e-5  # of the larger of two numbers, within which they are equal
SAMPLES = 30
EXPLANATIONS = ("contrastive", "target", "log_prob", "none")


@cache
def correlations(facts: Facts, model: str, task: str) -> tuple[dict[tuple[str, str], float], int]:
    """The mean correlation of each two methods, and the samples that it is over."""
    maps: dict[str, dict[str, np.ndarray]] = {}
    for cell, rows in facts.cells.items():
        if cell[:3] != (model, task, facts.dtype(model, task)):
            continue
        explanation = next(name for name in EXPLANATIONS if name in set(rows["explanation"]))
        setting = Setting(explanation=explanation)
        if not facts.noise(cell, setting):
            frame = facts.variant(cell, setting)
            maps[cell[3]] = dict(zip(frame["sample_id"], frame["relevance"], strict=True))
    every = []
    for sample in sorted(set.intersection(*map(set, maps.values())))[:SAMPLES]:
        ranked = {name: ranks(np.array(of_method[sample], np.float64)) for name, of_method in maps.items()}
        if all(np.ptp(values) > 0 for values in ranked.values()):
            every.append({(a, b): float(np.corrcoef(ranked[a], ranked[b])[0, 1]) for a in maps for b in maps})
    return {pair: float(np.mean([r[pair] for r in every])) for pair in every[0]} if every else {}, len(every)


def ranks(values: np.ndarray) -> np.ndarray:
    """From 1; equal values share the mean of their ranks."""
    numbers = []
    for value in values:
        margins = ROUNDING * np.maximum(abs(value), np.abs(values))
        below, level = (values < value - margins).sum(), (np.abs(values - value) <= margins).sum()
        numbers.append(below + (level + 1) / 2)
    return np.array(numbers, np.float64)


def agreement(facts: Facts, row: Mapping[str, str]) -> Expected | None:
    if row["method"] == row["label"]:
        return UNDEFINED
    means, n = correlations(facts, row["model"], row["task"])
    pair = (NAMES[row["method"]], NAMES[row["label"]])
    return number(means[pair], n) if pair in means else UNDEFINED


@cache
def tree(facts: Facts, model: str, task: str) -> np.ndarray:
    """The corners of the tree of methods by average linkage [N, 2]: distance, and place among the leaves."""
    means, _ = correlations(facts, model, task)
    printed = [row for row in facts.root.numbers("agreement") if (row["model"], row["task"]) == (model, task)]
    methods = [NAMES[label] for label in dict.fromkeys(row["method"] for row in printed)]  # mirrored trees are equal
    distances = [1 - means[pair] for pair in combinations(methods, 2)]
    drawn = dendrogram(average(np.clip(distances, 0, 2)), no_plot=True)
    across, heights = np.array(drawn["icoord"]).ravel(), np.array(drawn["dcoord"]).ravel()
    return np.stack([heights, (across - 5) / 10], axis=1)


def branch(facts: Facts, at: Mapping[str, str]) -> Expected:
    """The corner that lies nearest."""
    corners = tree(facts, *at["panel"].split(" · "))
    point = np.array([float(at["x"]), float(at["value"])])
    x, y = corners[np.abs(corners - point).sum(axis=1).argmin()]
    return Expected({"x": Range.exact(x), "value": Range.exact(y)})


TABLES = {"agreement": agreement}
