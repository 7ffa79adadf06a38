"""Points of figures: curves, areas and costs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache

import numpy as np
import pandas as pd

from tests.recompute import (
    statistics,
    tables_agreement,
    tables_controls,
    tables_costs,
    tables_faithfulness,
    tables_removal,
    tables_shares,
    tables_sources,
)
from tests.recompute.expected import Expected
from tests.recompute.facts import NAMES, Facts
from tests.recompute.statistics import Interval, Range
from tests.recompute.tables_faithfulness import INVERTED, CurveKey
from tests.recompute.tables_shares import MEASURES

FIGURES = "figures/"  # before the names of figures in the frame
Point = Mapping[str, str]  # table, panel, line, x, value, low, high
SHOWN = {"most relevant first": "morf", "least relevant first": "lerf", "difference": "delta"}
MAIN = "relu_token"  # pooling of the figure that has one
FEW = 3  # samples whose correlation has no interval
GRID = 40  # steps of a figure of curves


def point(x: float, y: float, interval: Interval = None, scale: float = 1.0) -> Expected:
    numbers = {"x": Range.exact(x), "value": Range.exact(y)}
    if interval is not None:
        numbers["low"], numbers["high"] = interval
    return Expected(numbers, scale=scale)


def from_table(expected: Expected | None, x: float) -> Expected | None:
    """A number of a table as a point at `x`."""
    if expected is None or "value" not in expected.numbers:
        return None
    numbers = {"x": Range.exact(x), "value": expected.numbers["value"]}
    numbers |= {end: expected.numbers[end] for end in ("low", "high") if end in expected.numbers}
    return Expected(numbers, scale=expected.scale)


@cache
def on_grid(facts: Facts, curve_key: CurveKey, method: str) -> dict[str, np.ndarray]:
    """Curves [samples, GRID + 1] of both orders and their difference, interpolated, of samples that have both."""
    rows = tables_faithfulness.curves(facts)[(*curve_key, method)]
    grid = np.linspace(0, 1, GRID + 1)
    kept = tables_faithfulness.areas(facts, curve_key, method).dropna().index
    by_order: dict[str, dict[str, np.ndarray]] = {"morf": {}, "lerf": {}}
    for row in rows[rows["order"].isin(by_order)].itertuples():
        gone = np.array(row.removed, np.float64)
        by_order[row.order][row.sample_id] = np.interp(grid, gone / gone[-1], np.array(row.logit, np.float64))
    stacked = {order: np.stack([by[sample] for sample in kept]) for order, by in by_order.items()}
    return stacked | {"delta": stacked["lerf"] - stacked["morf"]}


def faithfulness(facts: Facts, at: Point) -> Expected | None:
    """The mean logit where a share of tokens is gone; `faithfulness_TASK_WAY`."""
    figure = at["table"].removeprefix(FIGURES + "faithfulness_")
    contrast = figure.endswith("_contrast")
    task, way = figure.removesuffix("_contrast").rsplit("_", 1)
    way += "_contrast" * contrast
    model, shown = at["panel"].rsplit(" · ", 1)
    inverted = at["line"].endswith(INVERTED)
    method = NAMES[at["line"].removesuffix(INVERTED)]
    column = SHOWN[shown]
    if inverted:
        column = {"morf": "lerf", "lerf": "morf"}.get(column, column)
    step = round(float(at["x"]) * GRID)
    values = on_grid(facts, (model, task, way), method)[column][:, step] * (
        -1 if inverted and shown == "difference" else 1
    )
    return point(step / GRID, values.mean(), facts.interval(values), scale=10)


def shares(facts: Facts, at: Point) -> Expected | None:
    """A measure where a share of the top tokens is gone; `shares_TASK_WAY_KIND`."""
    task, way, _ = at["table"].removeprefix(FIGURES + "shares_").rsplit("_", 2)
    model, measure = at["panel"].rsplit(" · ", 1)
    if measure not in MEASURES:
        return None
    curve_key, method = (model, task, way), NAMES[at["line"]]
    column = list(tables_shares.SHARES).index(round(float(at["x"])))
    values = tables_shares.share_values(facts, curve_key, method, measure)
    if values is None:
        return None
    x = tables_shares.SHARES[column]
    values = values[:, column]
    if not measure.endswith("r"):
        bounds = (0.0 if MEASURES[measure].startswith("right") else -1.0, 1.0)
        return point(x, values.mean(), facts.interval(values, bounds))
    scores = tables_shares.gold(facts, curve_key, method)

    def r(weights: np.ndarray) -> np.ndarray:
        return tables_shares.correlation(values[:, None], scores, weights)

    n = len(scores)
    value = float(r(np.full((1, n), 1 / n))[0])
    drawn = statistics.percentile_of(r, n, facts.draws) if n > FEW and not np.isnan(value) else None
    return point(x, value, drawn)


def pruning(facts: Facts, at: Point) -> Expected | None:
    """Accuracy in percent with so many heads removed; `pruning_TASK_ORDER`, of random orders mean and range."""
    name = at["table"].removeprefix(FIGURES + "pruning_").removesuffix("_main")
    task, order = name.rsplit("_", 2)[0], "_".join(name.rsplit("_", 2)[1:])
    model, _, pooling = at["panel"].partition(" · ")
    poolings = tables_removal.POOLINGS
    runs = tables_removal.pruning_runs(facts, model, task, NAMES[at["line"]], poolings.get(pooling, MAIN), order)
    values = []
    for run in runs:
        gone = tables_removal.removed_heads(run)
        [step] = np.flatnonzero(gone == float(at["x"]))
        values.append(100 * run["accuracy"].iloc[step])
    ends = (Range.exact(min(values)), Range.exact(max(values))) if len(values) > 1 else None
    return point(float(at["x"]), float(np.mean(values)), ends, scale=100)


def runtime(facts: Facts, at: Point) -> Expected | None:
    """Medians and quartiles of a pass over all tasks of a model and precision."""
    rows = passes(facts, at)
    return from_table(tables_costs.quartiles(rows["ms"], always=True), float(at["x"]))


def memory(facts: Facts, at: Point) -> Expected | None:
    return point(float(at["x"]), float(passes(facts, at)["peak_bytes"].max()) / tables_costs.MIB)


def passes(facts: Facts, at: Point) -> pd.DataFrame:
    rows = tables_costs.runtime_rows(facts)
    model, dtype = at["panel"].split(" · ")
    rows = rows[(rows["model"] == model) & (rows["dtype"] == dtype) & (rows["stage"] == "method")]
    method = NAMES.get(at["line"], at["line"])
    return rows[(rows["method"] == method) & (rows["tokens"] == round(float(at["x"])))]


CHECKS = {
    "faithfulness": faithfulness,
    "shares": shares,
    "pruning": pruning,
    "controls": tables_controls.by_depth,
    "runtime": runtime,
    "memory": memory,
    "agreement_tree": tables_agreement.branch,
    "sources_error": tables_sources.error,
}


def check_of(figure: str) -> Callable[[Facts, Point], Expected | None] | None:
    """The check of a figure, by the beginning of its name."""
    return next((check for begin, check in CHECKS.items() if figure.startswith(FIGURES + begin)), None)
