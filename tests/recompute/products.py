"""Numbers that a root stores and that follow from others it stores: metrics, their means, and areas."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np

from tests.recompute import metrics, statistics, tables_layers, tables_removal, tables_sources
from tests.recompute.expected import Expected, Left
from tests.recompute.facts import Facts, Setting
from tests.recompute.statistics import Range
from tests.recompute.stored import CELL

Row = Mapping[str, str]
VARIANT = ("explanation", "embedding", "tokens", "scope")
Checked = Iterator[tuple[Row, tuple[str, ...], Expected | Left | None]]


def setting_of(row: Mapping[str, str]) -> Setting:
    return Setting(*(row[name] for name in VARIANT))


def text(value: object) -> str:
    """A number as a report prints it; nothing where there is none."""
    return "" if value is None or value != value else str(value)


def scores_samples(facts: Facts) -> Checked:
    """Every metric of every sample under every variant."""
    for row in facts.root.flat("scores_samples").to_dict("records"):
        cell = tuple(row[name] for name in CELL)
        frame = facts.samples(cell, setting_of(row))
        if not len(frame) or row["sample_id"] not in frame.index:
            continue
        sample = frame.loc[row["sample_id"]]
        numbers = {name: Range.exact(sample[name]) for name in metrics.SPECIFIED if name in row}
        named = "/".join([*cell, *(row[name] for name in VARIANT), row["sample_id"]])
        yield {"id": named} | {name: text(row[name]) for name in numbers}, tuple(numbers), Expected(numbers)


def scores(facts: Facts) -> Checked:
    """Means in percent over correctly predicted samples, and the accuracy over all."""
    for row in facts.root.flat("scores").to_dict("records"):
        cell = tuple(row[name] for name in CELL)
        named = "/".join([*cell, *(str(row[name]) for name in VARIANT), row["metric"]])
        line = {"id": named, "value": text(row["value"]), "n": text(row["n"])}
        yield line, ("value", "n"), _mean(facts, cell, row)


def _mean(facts: Facts, cell: tuple[str, ...], row: Mapping[str, str]) -> Expected | None:
    if row["metric"] == "accuracy":
        if not facts.judged_by_correctness(cell):
            return Expected({"n": Range.exact(0)})
        rows = facts.cells[cell].drop_duplicates("sample_id")
        values = [facts.correct(cell, record) for record in rows.itertuples()]
        return Expected({"value": Range.exact(100 * np.mean(values)), "n": Range.exact(len(values))}, scale=100)
    if row["metric"] == "peak":
        peaks = facts.peaks(cell, setting_of(row))
        return Expected({"value": Range.exact(100 * np.median(peaks)), "n": Range.exact(len(peaks))})
    frame = facts.correctly(cell, setting_of(row))
    if not len(frame):
        return Expected({"n": Range.exact(0)})
    if row["metric"] not in frame:
        return None
    values = 100 * frame[row["metric"]].to_numpy()
    return Expected({"value": Range.exact(values.mean()), "n": Range.exact(len(values))}, scale=100)


def curves(facts: Facts) -> Checked:
    """The area under each curve, by trapezoids over the share of tokens that are gone."""
    frame = facts.root.frame("curves")
    for row in frame[frame["percent"].isna()].itertuples() if len(frame) else ():
        gone = np.array(row.removed, np.float64)
        area = statistics.trapezoids(np.array(row.logit, np.float64), gone / gone[-1])
        names = (
            row.model,
            row.task,
            row.dtype,
            row.method,
            row.explanation,
            row.embedding,
            row.perturbation,
            row.score,
        )
        line = {"id": "/".join([*names, row.order, row.sample_id]), "area": text(row.area)}
        yield line, ("area",), Expected({"area": Range.exact(area)}, scale=10)


def pruning(facts: Facts) -> Checked:
    """The area under each pruning curve, over the share of heads removed; who ranks the heads, who is evaluated."""
    frame = facts.root.frame("pruning")
    if not len(frame):
        return
    keys = ["model", "task", "dtype", "method", "pooling", "order", "seed", "half"]
    for key, rows in frame.groupby(keys, sort=False, dropna=False):
        run = rows.sort_values("step")
        gone = tables_removal.removed_heads(run)
        area = statistics.trapezoids(run["accuracy"].to_numpy(np.float64), gone / gone[-1])
        line = {"id": "/".join(map(str, key)), "area": text(run["area"].iloc[0])}
        line["mean"] = text(float(np.mean(run["areas"].iloc[0])))  # of samples, each with its own curve
        expected = {"area": Range.exact(area), "mean": Range.exact(area)}
        numbers = tables_removal.ranked(facts, run)
        line |= {name: text(value) for name, value in numbers.items()}
        yield line, (*expected, *numbers), Expected(expected | dict.fromkeys(numbers, Range.exact(0)))


def layer_scores(facts: Facts) -> Checked:
    """Means of metrics of layers, of the variant that the report shows."""
    for row in facts.root.flat("layer_scores").to_dict("records"):
        named = "/".join([*(row[name] for name in (*CELL, *VARIANT)), str(row["layer"]), row["metric"]])
        frame = tables_layers.layers_of(facts).get((row["model"], row["task"], row["method"], row["layer"]))
        shown = row["tokens"] == "all" and row["scope"] == "full" and row["explanation"] in ("target", "none")
        expected: Expected | Left | None = None
        if not shown:
            expected = Left("scores of layers in settings that no page shows")
        elif frame is not None and row["metric"] in frame:
            values = frame[row["metric"]]
            expected = Expected({"value": Range.exact(values.mean()), "n": Range.exact(len(values))}, scale=100)
        yield {"id": named, "value": text(row["value"]), "n": text(row["n"])}, ("value", "n"), expected


PRODUCTS: dict[str, Callable[[Facts], Checked]] = {
    "scores_samples": scores_samples,
    "scores": scores,
    "layer_scores": layer_scores,
    "curves": curves,
    "pruning": pruning,
    "sources": tables_sources.stored,
}
