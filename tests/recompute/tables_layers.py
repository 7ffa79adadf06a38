"""Tables of evidence by layer."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

import numpy as np
import pandas as pd

from tests.recompute import metrics
from tests.recompute.expected import UNDEFINED, Expected, number
from tests.recompute.facts import METRICS, NAMES, Facts, Setting
from tests.recompute.tables_scores import PERCENT

Row = Mapping[str, str]
ALL = Setting(explanation="target", tokens="all", scope="full")
SCORED = ("ap", "dot", "dot_softmax")


@cache
def layers_of(facts: Facts) -> dict[tuple[str, str, str, int], pd.DataFrame]:
    """Metrics in percent of correctly predicted samples by model, task, method and layer; the slot never counts."""
    frame = facts.root.frame("layers")
    if not len(frame):
        return {}
    frame = frame[frame["explanation"].isin(["target", "none"]) & frame["embedding"].isin(["full", "none"])]
    masked = {record["artifact"]["tokenizer"]: record["kind"] == "masked" for record in facts.root.records("views")}
    scores: dict[tuple[str, str, str, int], dict[str, dict[str, float]]] = {}
    for row in frame.itertuples():
        cell = (row.model, row.task, row.dtype, row.method)
        view = facts.view(cell, row.sample_id)
        if view["evidence_mask"] is None or not facts.correct(cell, row):
            continue
        chosen = facts.chosen(cell, row.sample_id, ALL).copy()
        if masked[facts.root.tokenizers[cell]]:
            chosen[view["position"]] = False
        r, g = np.array(row.relevance, np.float64)[chosen], np.array(view["evidence_mask"])[chosen]
        numbers = {name: 100 * float(np.float32(metrics.SPECIFIED[name](r, g))) for name in SCORED}
        scores.setdefault((row.model, row.task, row.method, row.layer), {})[row.sample_id] = numbers
    return {key: pd.DataFrame.from_dict(by, orient="index").sort_index() for key, by in scores.items()}


def layers(facts: Facts, row: Row) -> Expected | None:
    if row["model"] not in facts.models:
        return None
    frame = layers_of(facts).get((row["model"], row["task"], NAMES[row["group"]], int(row["layer"])))
    if frame is None:
        return UNDEFINED
    values = frame[METRICS[row["label"]]].to_numpy()
    return number(values.mean(), len(values), facts.interval(values, PERCENT), scale=100)


TABLES = {"layers": layers}
