"""Numbers that stand in pages alone: records of samples and neurons."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from tests.recompute.expected import Expected
from tests.recompute.facts import NAMES, Facts, Setting
from tests.recompute.products import Checked, text
from tests.recompute.statistics import Range
from tests.recompute.stored import CELL

LEAF = re.compile(r'<script type="application/json" id="leaf">(.*?)</script>', re.S)
FIRST = re.compile(r'<script type="application/json"[^>]*>(\{"starts".*?)</script>', re.S)
PLACES = re.compile(r'"places":(\[.*?\])')
DIGITS = 6e-4  # records have four digits
ZERO = 1e-6


def digits(value: float) -> Range:
    """A number that a record holds with four digits."""
    return Range(value, value - DIGITS * abs(value), value + DIGITS * abs(value))


def or_zero(value: float) -> Range:
    """A number with four digits, which is written as 0 where it is rounding."""
    near = digits(value)
    return near if abs(value) > ZERO else Range(value, min(near.least, 0.0), max(near.most, 0.0))


def records(page: Path) -> Iterator[dict[str, Any]]:
    """The records of a page of samples or neurons: the first stand in it, others in its folder."""
    for first in FIRST.findall(page.read_text(encoding="utf-8")) if page.exists() else ():
        held = json.loads(first)["first"]
        if held and isinstance(held[0], dict):
            yield from held
    for leaf in sorted((page.parent / page.stem).glob("*.html")):
        held = json.loads(LEAF.search(leaf.read_text(encoding="utf-8"))[1])  # type: ignore[index]
        if held and isinstance(held[0], dict):
            yield from held


def samples(facts: Facts) -> Checked:
    """Relevance of every token of the samples that the report shows, and by how much the target is ahead."""
    for record in records(facts.root.path / "report" / "samples.html"):
        named = f"{record['model']}/{record['task']}/{record['sample_id']}"
        dtype = facts.dtype(record["model"], record["task"])
        for row in record["rows"]:
            name = f"{named}/{row['label']}/{row['explanation']}"
            method = NAMES.get(row["label"].removesuffix(" (near noise)"), "")
            cell = (record["model"], record["task"], dtype, method)
            if "of" in row:
                name = f"{name}/{row['of']}"
                relevance = of_label(facts, cell, record["sample_id"], row["of"])
            else:
                relevance = shown(facts, cell, record["sample_id"], row["explanation"])
            columns = [f"token {at}" for at in range(len(row["values"]))]
            line = {"id": name} | {column: text(value) for column, value in zip(columns, row["values"], strict=True)}
            if relevance is None or len(relevance) != len(columns):
                yield line, tuple(columns), None
                continue
            expected = {column: or_zero(value) for column, value in zip(columns, relevance.tolist(), strict=True)}
            yield line, tuple(columns), Expected(expected)


def shown(facts: Facts, cell: tuple[str, ...], sample: str, explanation: str) -> np.ndarray | None:
    if cell not in facts.cells:
        return None
    rows = facts.variant(cell, Setting(explanation=explanation))
    rows = rows[(rows["sample_id"] == sample) & (rows["explanation"] == explanation)]
    return np.array(rows["relevance"].iloc[0], np.float64) if len(rows) == 1 else None


def of_label(facts: Facts, cell: tuple[str, ...], sample: str, label: str) -> np.ndarray | None:
    """Relevance for a label: the predicted label's is that of the target."""
    number = facts.label_ids.get(cell[:2], {}).get(label)
    rows = label_rows(facts)
    if number is None or not len(rows):
        return None
    same = (rows["sample_id"] == sample) & (rows["label_id"] == number) & (rows["embedding"] != "partial")
    for column, value in zip(CELL, cell, strict=True):
        same &= rows[column] == value
    if same.sum() == 1:
        return np.array(rows.loc[same, "relevance"].iloc[0], np.float64)
    predicted = facts.cells[cell].set_index("sample_id").loc[[sample], "predicted_id"].iloc[0]
    return shown(facts, cell, sample, "target") if predicted == number else None


@cache
def label_rows(facts: Facts) -> pd.DataFrame:
    return facts.root.frame("labels")


@cache
def contexts(facts: Facts) -> dict[tuple[str, int, int], pd.DataFrame]:
    frame = facts.root.frame("contexts")
    return dict(iter(frame.groupby(["model", "layer", "neuron"]))) if len(frame) else {}


@cache
def kept_neurons(facts: Facts) -> dict[tuple[str, int, int, str, str], dict[str, tuple[float, float]]]:
    """Relevance and activation by sample of neurons that a method keeps, by model, layer, neuron, task and method."""
    frame = facts.root.frame("neurons")
    kept: dict[tuple[str, int, int, str, str], dict[str, tuple[float, float]]] = {}
    for row in frame[frame["explanation"] == "contrastive"].itertuples() if len(frame) else ():
        for layer, neuron, relevance, activation in zip(
            row.layer, row.neuron, row.relevance, row.activation, strict=True
        ):
            kept.setdefault((row.model, layer, neuron, row.task, row.method), {})[row.sample_id] = (
                relevance,
                activation,
            )
    return kept


@cache
def neuron_samples(facts: Facts) -> dict[tuple[str, str, str], int]:
    """Samples whose neurons a method ranks, by model, task and method."""
    frame = facts.root.frame("neurons")
    return frame.groupby(["model", "task", "method"])["sample_id"].nunique().to_dict()


def neurons(facts: Facts) -> Checked:
    """The page of neurons: their logit lens, relevance in samples, and max-activating examples in a corpus."""
    page = facts.root.path / "report" / "neurons.html"
    embedded = PLACES.search(page.read_text(encoding="utf-8")) if page.exists() else None
    places = json.loads(embedded[1]) if embedded is not None else []  # none of a run without neurons
    for record in records(page):
        key = (record["model"], record["layer"], record["neuron"])
        line: dict[str, str] = {"id": "/".join(map(str, key))}
        expected: dict[str, Range] = {}
        for at, sample in enumerate(record["samples"]):
            method = NAMES.get(sample["method"], "")
            of_sample = kept_neurons(facts).get((*key, sample["task"], method), {}).get(sample["id"])
            for name, value in zip(("relevance", "activation"), of_sample or (), strict=False):
                line[f"{name} {at}"], expected[f"{name} {at}"] = text(sample[name]), digits(float(value))
        for index, shown_mean, count in record["ranked"]:
            task, label = places[index].split(" · ", 1)
            kept = kept_neurons(facts).get((*key, task, NAMES.get(label, "")), {})
            mean = (
                sum(relevance for relevance, _ in kept.values())
                / neuron_samples(facts)[record["model"], task, NAMES[label]]
            )
            line |= {f"mean {index}": text(shown_mean), f"samples {index}": text(count)}
            expected |= {f"mean {index}": digits(mean), f"samples {index}": Range.exact(len(kept))}
        ranked = contexts(facts).get(key)
        for at, context in enumerate(record["contexts"] if ranked is not None else ()):
            row = ranked[ranked["rank"] == at + 1].iloc[0]
            line[f"context {at}"], expected[f"context {at}"] = (
                text(context.get("activation")),
                digits(float(row["activation"])),
            )
        yield line, tuple(expected), Expected(expected)


PAGES = {"samples": samples, "neurons": neurons}
