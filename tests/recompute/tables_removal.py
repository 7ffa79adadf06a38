"""Tables of neurons and heads that go, and of extremes of relevance."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import cache

import numpy as np
import pandas as pd
import pyarrow.parquet as pq

from tests.recompute.expected import TOLD, UNDEFINED, Expected, number, smallest
from tests.recompute.facts import NAMES, Facts, Setting
from tests.recompute.statistics import Range

Row = Mapping[str, str]


def extremes(facts: Facts, row: Row) -> Expected | None:
    """Largest relevance and what is missing from the sum, in units of the explained number."""
    model, dtype = row["model"].rsplit(", ", 1)
    cell = (model, row["task"], dtype, NAMES[row["method"]])
    rows = facts.variant(cell, Setting())
    explained = np.abs(rows["explained"].to_numpy(np.float64))
    peaks = np.array([np.abs(np.array(relevance, np.float64)).max() for relevance in rows["relevance"]])
    kept = np.isfinite(peaks) & (peaks > 0) & (explained > 0)
    if row["label"] == "samples":
        return number(int(kept.sum()))
    if row["label"] == "left out":
        return number(int((~kept).sum()))
    missing = row["group"] == "missing from the sum"
    values = (np.abs(rows["residual"].to_numpy(np.float64)) if missing else peaks)[kept] / explained[kept]
    return number({"median": np.median, "maximum": np.max}[row["label"]](values))


@cache
def knocked(facts: Facts) -> dict[tuple[str, str, str], pd.DataFrame]:
    """Drops of the explained number by model, task and ranking: a row a sample, a column a count of neurons."""
    frame = facts.root.frame("knockouts")
    tables = {}
    for (model, task, ranking), rows in frame.groupby(["model", "task", "ranking"], sort=False):
        drops = {
            row.sample_id: dict(zip(row.removed, row.explained[0] - np.array(row.explained, np.float64), strict=True))
            for row in rows.itertuples()
        }
        tables[model, task, ranking] = pd.DataFrame.from_dict(drops, orient="index").sort_index()
    return tables


@cache
def knocked_pairs(facts: Facts, model: str, task: str, count: int) -> dict[tuple[str, str], Range]:
    rankings = {key[2]: table for key, table in knocked(facts).items() if key[:2] == (model, task)}
    return facts.pairs_of({name: rankings[name][count].dropna() for name in sorted(rankings)})


def knockouts(facts: Facts, row: Row) -> Expected | None:
    if row["ranking"] == TOLD:
        return knocked_smallest(facts, row["model"], row["task"], int(row["label"]))
    key = (row["model"], row["task"], NAMES[row["ranking"]])
    if key not in knocked(facts) or not row["label"].isdigit():
        return None
    count = int(row["label"])
    values = knocked(facts)[key][count].dropna().to_numpy()
    p = knocked_pairs(facts, *key[:2], count).get((key[2], "random"))
    return number(values.mean(), len(values), facts.interval(values), p, scale=10)


def knocked_smallest(facts: Facts, model: str, task: str, count: int) -> Expected:
    """Of the drops of all rankings, on the samples that all have."""
    drops = [table[count].rename(key[2]) for key, table in knocked(facts).items() if key[:2] == (model, task)]
    return smallest(pd.concat(drops, axis=1, join="inner").dropna().to_numpy(), scale=10)


@cache
def pruned(facts: Facts) -> dict[tuple[str, str, str, str, str], list[pd.DataFrame]]:
    """Pruning curves by model, task, method, pooling and order, a frame a seed."""
    frame = pruning_frame(facts)
    frame = frame[frame["half"].isna()]
    keys = ["model", "task", "method", "pooling", "order"]
    frame = frame[
        [row.dtype == facts.dtype(row.model, row.task) for row in frame[["model", "task", "dtype"]].itertuples()]
    ]
    curves = {}
    for key, rows in frame.groupby(keys, sort=False):
        runs = [run.sort_values("step") for _, run in rows.groupby("seed", dropna=False)]
        curves[key] = runs
    return curves


POOLINGS = {"ReLU dim": "relu_dim", "ReLU per token": "relu_token", "no ReLU": "none"}
ORDERS = {"least relevant heads first": "least_first", "most relevant heads first": "most_first"}


def pruning_runs(facts: Facts, model: str, task: str, method: str, pooling: str, order: str) -> list[pd.DataFrame]:
    """The curves of a method; random orders have neither pooling nor a direction."""
    if method != "random":
        return pruned(facts).get((model, task, method, pooling, order), [])
    return [run for key, runs in pruned(facts).items() if key[:3] == (model, task, "random") for run in runs]


def removed_heads(run: pd.DataFrame) -> np.ndarray:
    return np.cumsum([len(heads) for heads in run["pruned_heads"]]).astype(np.float64)


@cache
def clusters(facts: Facts) -> dict[tuple[str, str], str | None]:
    """The clusters of samples by (task, sample)."""
    known: dict[tuple[str, str], str | None] = {}
    for record in facts.root.records("benchmark"):
        task = record["artifact"]["task"]
        for shard in record["shards"]:
            file = pq.ParquetFile(facts.root.path / "benchmark" / "generic" / f"task={task}" / shard)
            for row in file.read(columns=["sample_id", "cluster"]).to_pylist():
                known[task, row["sample_id"]] = row["cluster"]
    return known


@cache
def heads_of(facts: Facts) -> dict[tuple[str, str, str, str, str], pd.DataFrame]:
    """Contrastive relevance of heads by (model, task, dtype, method, pooling)."""
    frame = facts.root.frame("heads")
    frame = frame[frame["explanation"] == "contrastive"]
    return dict(iter(frame.groupby(["model", "task", "dtype", "method", "pooling"], sort=False)))


def half_of(facts: Facts, task: str, sample: str) -> int:
    """The half of a sample, or of its cluster: the lowest bit of the first byte of a hash."""
    name = clusters(facts).get((task, sample)) or sample
    return int(hashlib.sha256(f"halves:{facts.root.config['seed']}:{name}".encode()).hexdigest()[:2], 16) % 2


@cache
def ranking(facts: Facts, key: tuple[str, str, str, str, str], half: int | None) -> np.ndarray:
    """The mean relevance of heads over all samples or a half, by (model, task, dtype, method, pooling)."""
    frame = heads_of(facts)[key]
    kept = [half is None or half_of(facts, key[1], sample) == half for sample in frame["sample_id"]]
    return np.mean([np.array(relevance, np.float64) for relevance in frame.loc[kept, "relevance"]], axis=0)


def ranked(facts: Facts, run: pd.DataFrame) -> dict[str, float]:
    """By how much heads of a curve's points stand in a wrong order, and how many samples rank and are evaluated."""
    first = run.iloc[0]
    if first["method"] == "random":
        return {}
    half = None if pd.isna(first["half"]) else int(first["half"])
    key = tuple(first[["model", "task", "dtype", "method", "pooling"]])
    mean = ranking(facts, key, half)[np.concatenate([np.array(heads, int) for heads in run["pruned_heads"]])]
    falls = np.diff(mean) * (1 if first["order"] == "most_first" else -1)
    both = [half is not None and half_of(facts, first["task"], sample) == half for sample in first["samples"]]
    return {"misplaced": max(0.0, float(falls.max())), "both": float(sum(both))}


@cache
def pruning_frame(facts: Facts) -> pd.DataFrame:
    return facts.root.frame("pruning")


@cache
def pruned_areas(facts: Facts, model: str, task: str, method: str, setting: tuple[str, str], halves: bool) -> pd.Series:
    """The area under each sample's own curve, percent; the mean over random orders."""
    frame = pruning_frame(facts)
    frame = frame[(frame["model"] == model) & (frame["task"] == task) & (frame["method"] == method)]
    frame = frame[(frame["dtype"] == facts.dtype(model, task)) & frame["samples"].notna()]
    if method != "random":
        frame = frame[(frame["pooling"] == setting[0]) & (frame["order"] == setting[1])]
        frame = frame[frame["half"].notna() == halves]
    values = [
        (name, 100 * value) for row in frame.itertuples() for name, value in zip(row.samples, row.areas, strict=True)
    ]
    if not values:
        return pd.Series(dtype=float)
    return pd.DataFrame(values, columns=["sample", "area"]).groupby("sample")["area"].mean()


def pruning_smallest(facts: Facts, model: str, task: str, setting: tuple[str, str]) -> Expected:
    """The difference of two methods that a t test, its level over all pairs, finds with a power of 0.8."""
    frame = pruning_frame(facts)
    methods = frame.loc[(frame["model"] == model) & (frame["task"] == task), "method"].unique()
    drawn = (pruned_areas(facts, model, task, method, setting, True).rename(method) for method in methods)
    values = pd.concat([areas for areas in drawn if len(areas)], axis=1, join="inner")
    return smallest(values.to_numpy(), scale=100)


def pruning_area(facts: Facts, row: Row) -> Expected | None:
    """The mean accuracy over the share of heads removed, percent."""
    setting = (POOLINGS[row["label"]], ORDERS[row["group"]])
    if row["method"] == TOLD:
        return pruning_smallest(facts, row["model"], row["task"], setting) if row["side"] == "halves" else UNDEFINED
    areas = pruned_areas(facts, row["model"], row["task"], NAMES[row["method"]], setting, row["side"] == "halves")
    if not len(areas):
        return UNDEFINED
    values = areas.to_numpy()
    return number(values.mean(), len(values), facts.interval(values, (0.0, 100.0)), scale=100)


TABLES = {"extremes": extremes, "knockouts": knockouts, "pruning_area": pruning_area}
