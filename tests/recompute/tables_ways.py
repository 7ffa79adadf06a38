"""Tables of rankings under two ways in which tokens go."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tests.recompute import statistics
from tests.recompute.expected import UNDEFINED, Expected, number
from tests.recompute.facts import Facts
from tests.recompute.tables_faithfulness import OF_CONTRAST, WAYS, CurveKey, areas, judged, spearman

Row = Mapping[str, str]


def curve_keys_of(row: Row) -> tuple[CurveKey, CurveKey]:
    """The curves of both ways."""
    model = row["model"].removesuffix(OF_CONTRAST)
    followed = "_contrast" if row["model"].endswith(OF_CONTRAST) else ""
    first, second = (WAYS[name] + followed for name in row["ways"].split(", "))
    return (model, row["task"], first), (model, row["task"], second)


def faithfulness_ways(facts: Facts, row: Row) -> Expected | None:
    """Of methods by mean ΔA, random relevance left out, on the samples whose curves all have under both ways."""
    frames = []
    for curve_key in curve_keys_of(row):
        frames.append({name: areas(facts, curve_key, name)["delta"].dropna() for name in judged(facts, curve_key)})
    methods = [name for name in frames[0] if name in frames[1] and name != "random"]
    methods = [name for name in methods if len(frames[0][name].index.intersection(frames[1][name].index))]
    common = set.intersection(*(set(frame[name].index) for frame in frames for name in methods)) if methods else set()
    if row["label"] == "methods":
        return number(len(methods))
    if row["label"] == "samples":
        return number(len(common))
    if row["label"] != "rank correlation" or not common:
        return None if common else UNDEFINED
    sides = [np.stack([frame[name][sorted(common)].to_numpy() for name in methods]) for frame in frames]  # [M, N]

    def correlation(weights: np.ndarray) -> np.ndarray:
        return np.array([spearman(*(side @ weight for side in sides)) for weight in weights])

    n = len(common)
    value = float(correlation(np.full((1, n), 1 / n))[0])
    if np.isnan(value):
        return UNDEFINED
    return number(value, n, statistics.percentile_of(correlation, n, facts.draws))


TABLES = {"faithfulness_ways": faithfulness_ways}
