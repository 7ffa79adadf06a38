"""Tables and figures of measured passes, conservation by layer, and one sample's relevance."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

import numpy as np
import pandas as pd

from tests.recompute.expected import UNDEFINED, Expected, number
from tests.recompute.facts import LABELS, NAMES, Facts, Setting
from tests.recompute.statistics import Range

Row = Mapping[str, str]
STAGES = {"forward": "forward", "backward": "backward", "aggregation": "aggregate", "all": "method"}
MIB = 2**20
ROUNDED = 1e-6  # boundaries are written with six digits
#: The pass of methods that share one; others run by themselves.
PASSES = {
    **dict.fromkeys(("attnlrp", "attnlrp_vit", "lrp", "gradient_x_input", "gradient_l1", "gradient_l2"), "gradients"),
    **dict.fromkeys(("lrp_identity_softmax", "lrp_distributed_bias"), "gradients_openly"),
    **dict.fromkeys(("normxlogit", "embedding_norm", "logat"), "states"),
    "attention_rollout": "rollout",
    "alti_logit": "alti",
}
FOUR = 6e-4  # relevance of a sample is written with four digits
TARGET = Setting(explanation="target")


@cache
def runtime_rows(facts: Facts) -> pd.DataFrame:
    """Stored batches with the power of two that holds their padded length, their cost a sample and tokens a second."""
    frame = facts.root.runtime()
    frame["tokens"] = [2 ** int(np.ceil(np.log2(length))) for length in frame["length"]]
    frame["ms"] = 1000 * frame["wall_s"] / frame["batch"]
    frame["rate"] = frame["length"] * frame["batch"] / frame["wall_s"]
    frame["pass"] = [LABELS.get(name, name) for name in frame["method"]]
    return frame


def quartiles(values: pd.Series, always: bool = False) -> Expected:
    """The median, with quartiles where there are several."""
    if not len(values):
        return UNDEFINED
    low, middle, high = np.percentile(values.to_numpy(np.float64), [25, 50, 75])
    numbers = {"value": Range.exact(middle), "n": Range.exact(len(values))}
    if len(values) > 1 or always:
        numbers |= {"low": Range.exact(low), "high": Range.exact(high)}
    return Expected(numbers)


def runtime(facts: Facts, row: Row) -> Expected | None:
    frame = runtime_rows(facts)
    named = {
        "task": row["task"],
        "model": row["model"],
        "dtype": row["precision"],
        "pass": row["pass"],
        "device": row["device"],
    }
    for column, value in named.items():
        frame = frame[frame[column] == value]
    frame = frame[frame["tokens"] == int(row["tokens"].removeprefix("≤ "))]
    if not len(frame):
        return None
    whole = frame[frame["stage"] == "method"]
    if row["label"] in STAGES:
        return quartiles(frame.loc[frame["stage"] == STAGES[row["label"]], "ms"])
    if row["label"] == "batches":
        return number(int(frame.groupby("stage").size().max()))
    if row["label"] == "tokens/s":
        return number(float(whole["rate"].median())) if len(whole) else UNDEFINED
    if row["label"] == "peak MiB":
        peaks = whole["peak_bytes"].dropna()
        return number(float(peaks.max()) / MIB) if len(peaks) else UNDEFINED
    return None


def milliseconds(facts: Facts, model: str, task: str, method: str) -> Expected:
    """Medians over batches: of a shared pass its forward, beside the method's own backward and aggregation."""
    frame = runtime_rows(facts)
    frame = frame[(frame["model"] == model) & (frame["task"] == task) & (frame["dtype"] == facts.dtype(model, task))]
    median = frame.groupby(["method", "stage"])["ms"].median()
    parts = [median.get((method, stage)) for stage in ("backward", "aggregate")]
    shared = PASSES.get(method, method)
    if (shared, "forward") in median and None not in parts:
        return number(float(median[shared, "forward"] + sum(parts)))
    whole = [median[name, "method"] for name in (method, shared) if (name, "method") in median]
    return number(float(whole[0])) if whole and (shared, "forward") not in median else UNDEFINED


@cache
def boundaries_of(facts: Facts, model: str, task: str, method: str) -> dict[str, np.ndarray]:
    """Means over samples of what crosses, enters and stays in each block, of the difference from the foil."""
    frame = facts.root.frame("neurons")
    frame = frame[(frame["model"] == model) & (frame["task"] == task) & (frame["method"] == method)]
    frame = frame[frame["explanation"] == "contrastive"]
    names = ("boundaries", "kept_by_biases", "kept_by_attention", "layer_relevance")
    return {name: np.stack([np.array(values, np.float64) for values in frame[name]]).mean(0) for name in names}


def boundaries(facts: Facts, row: Row) -> Expected | None:
    means = boundaries_of(facts, row["model"], row["task"], NAMES[row["method"]])
    layer = int(row["layer"])
    crossing = means["boundaries"]
    values = {
        "from above": crossing[layer + 1],
        "to below": crossing[layer],
        "kept by biases": means["kept_by_biases"][layer],
        "kept by attention": means["kept_by_attention"][layer],
        "neurons": means["layer_relevance"][layer],
    }
    values["unaccounted"] = (
        crossing[layer + 1] - crossing[layer] - values["kept by biases"] - values["kept by attention"]
    )
    value = float(values[row["label"]])
    return Expected({"value": Range(value, value - ROUNDED, value + ROUNDED)})


TABLES = {"runtime": runtime, "boundaries": boundaries}
