"""Tables of methods that name the sources of answers, and the figure of their error against forwards."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache

import numpy as np
import pandas as pd
import pyarrow.parquet as pq

from tests.recompute import answers, copied, tables_costs
from tests.recompute.answers import Cell, Variant
from tests.recompute.expected import TOLD, UNDEFINED, Expected, Left, number, smallest
from tests.recompute.facts import NAMES, Facts
from tests.recompute.statistics import Range

Row = Mapping[str, str]
EXPLAINED = {" of logits": "target", " of log p": "log_prob"}
UNTRAINED, SCREENED = " (untrained)", ", screened"
SUFFIX = {"against log p": "l", "against logits": "f", "log-odds": "y"}
PERCENT = 100.0


def cell_of(setting: str, task: str) -> Cell:
    """The model, task and way of "llama, remove"."""
    model, way = setting.rsplit(", ", 1)
    return model.removesuffix(UNTRAINED), task, way


def variant_of(label: str) -> Variant:
    """The variant of "LRP of log p"."""
    for ending, explanation in EXPLAINED.items():
        if label.endswith(ending):
            return Variant(NAMES[label.removesuffix(ending)], explanation)
    return Variant(NAMES[label], "none")


def measure_of(row: Row) -> str:
    if row["group"] == "evidence":
        return row["label"].lower()
    stem, _, count = row["label"].lower().partition(" ")
    return "_".join(part for part in (stem, SUFFIX[row["group"]], count) if part)


def whole(facts: Facts, cell: Cell) -> list[Variant]:
    """The methods' own variants."""
    return [variant for variant in answers.variants(facts, cell) if not variant.budget and not variant.screened]


def values(facts: Facts, cell: Cell, variant: Variant, measure: str) -> pd.Series:
    frame = answers.numbers(facts, cell, variant)
    return frame[measure].dropna() if measure in frame else pd.Series(dtype=float)


def sources(facts: Facts, row: Row) -> Expected | Left | None:
    """A mean with its interval, what a method costs, or the smallest difference that the samples tell."""
    cell = cell_of(row["model"], row["task"])
    if row["group"] == "cost":
        return UNDEFINED if row["method"] == TOLD else cost(facts, cell, variant_of(row["method"]), row["label"])
    measure, share = measure_of(row), row["group"] == "evidence"
    scale = PERCENT if share else 1.0
    if row["method"] == TOLD:
        known = [values(facts, cell, variant, measure) for variant in whole(facts, cell)]
        joined = (
            pd.concat([series for series in known if len(series)], axis=1, join="inner")
            if any(map(len, known))
            else None
        )
        return UNDEFINED if joined is None else smallest(scale * joined.to_numpy())
    kept = values(facts, cell, variant_of(row["method"]), measure).to_numpy()
    if not len(kept):
        return UNDEFINED
    bounds = (-1.0, 1.0) if measure.startswith("lds") else None if measure.startswith("drop") else (0.0, 1.0)
    interval = facts.interval(kept, bounds)
    if interval is not None:
        interval = (interval[0].times(scale), interval[1].times(scale))
    return number(scale * kept.mean(), len(kept), interval, scale=scale)


def cost(facts: Facts, cell: Cell, variant: Variant, label: str) -> Expected | Left:
    """Forwards and milliseconds of a sample: its relevance of tokens, and its ablated prompts."""
    prompts = float(np.mean([claim.prompts for claim in answers.claims(facts, cell, variant).values()]))
    if label == "forwards":
        passes = passes_of(variant.method)
        return passes if isinstance(passes, Left) else number(passes + prompts)
    of_prompt = prompt_milliseconds(facts, cell)
    of_pass = 0.0
    if variant.method not in answers.MADE_OF_ABLATIONS:
        known = tables_costs.milliseconds(facts, *cell[:2], variant.method)
        if "value" not in known.numbers:
            return UNDEFINED
        of_pass = known.numbers["value"].value
    if prompts and of_prompt is None:
        return UNDEFINED
    return number(of_pass + prompts * (of_prompt or 0.0))


def passes_of(method: str) -> float | Left:
    """Forwards of a method's relevance of tokens; one number is explained."""
    if method in answers.MADE_OF_ABLATIONS:
        return 0.0
    known = copied.forwards(method, 1)
    return known if isinstance(known, Left) else known.numbers["value"].value


@cache
def prompt_milliseconds(facts: Facts, cell: Cell) -> float | None:
    """The median of a sample's prompts."""
    model, task, way = cell
    folder = facts.root.path / "runtime" / f"model={model}" / f"task={task}" / f"dtype={facts.dtype(model, task)}"
    tables = [
        pq.ParquetFile(file).read().to_pandas() for file in sorted((folder / f"ablations={way}").glob("*.parquet"))
    ]
    if not tables:
        return None
    frame = pd.concat(tables)
    return float(np.median(1000 * frame["wall_s"] / frame["batch"]))


@cache
def common(facts: Facts, cell: Cell) -> pd.Index:
    """Samples of which all variants but the screened ones have a linear datamodeling score."""
    frames = [
        values(facts, cell, variant, "lds_l") for variant in answers.variants(facts, cell) if not variant.screened
    ]
    index = frames[0].index
    for frame in frames:
        index = index.intersection(frame.index)
    return index.sort_values()


def forwards(facts: Facts, cell: Cell, variant: Variant) -> float:
    passes = passes_of(variant.method)
    assert not isinstance(passes, Left)
    return passes + float(np.mean([claim.prompts for claim in answers.claims(facts, cell, variant).values()]))


def error(facts: Facts, point: Row) -> Expected | None:
    """1 - LDS of a variant at its forwards."""
    task, setting = point["panel"].split(" · ")
    cell = cell_of(setting, task)
    method = NAMES[point["line"].removesuffix(SCREENED)]
    screened = point["line"].endswith(SCREENED)
    candidates = [
        candidate
        for candidate in answers.variants(facts, cell)
        if (candidate.method, bool(candidate.screened)) == (method, screened) and candidate.explanation != "target"
    ]
    x = float(point["x"])
    [variant] = [
        candidate for candidate in candidates if abs(forwards(facts, cell, candidate) - x) < 1e-6 * max(1.0, x)
    ]
    kept = values(facts, cell, variant, "lds_l")
    kept = kept[kept.index.intersection(common(facts, cell))].to_numpy()
    numbers = {"x": Range.exact(x), "value": Range.exact(1 - kept.mean())}
    interval = facts.interval(kept, (-1.0, 1.0))
    if interval is not None:
        low, high = interval
        ends = {"low": high, "high": low}
        numbers |= {name: Range(1 - end.value, 1 - end.most, 1 - end.least) for name, end in ends.items()}
    return Expected(numbers)


def stored(facts: Facts) -> Iterator[tuple[Row, tuple[str, ...], Expected]]:
    """Every number that is stored of a sample's sources."""
    frame = facts.root.frame("sources")
    for cell in sorted(set(zip(frame.get("model", ()), frame.get("task", ()), frame.get("way", ()), strict=True))):
        for (variant, sample), row in answers.stored(facts, cell).items():
            recomputed = answers.numbers(facts, cell, variant).loc[sample].dropna()
            names = [name for name in recomputed.index if not name.startswith("drop")]
            numbers = {name: Range.exact(recomputed[name]) for name in names}
            claim = answers.claims(facts, cell, variant)[sample]
            relevance = np.mean(claim.folds, axis=0)
            numbers |= {f"unit {unit}": Range.exact(value) for unit, value in enumerate(relevance)}
            printed = {name: row[name] for name in names}
            printed |= {f"unit {unit}": value for unit, value in enumerate(row["relevance"])}
            named = "/".join([*cell, *map(str, variant), sample])
            size = max(1.0, float(np.abs(relevance).max()))
            yield {"id": named} | {k: str(v) for k, v in printed.items()}, tuple(numbers), Expected(numbers, scale=size)


TABLES = {"sources": sources, "sources_further": sources}
