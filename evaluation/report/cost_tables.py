"""Tables of what things cost: area under pruning curves, measured passes, and table 8 from the benchmark of lrp."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from evaluation.report.figures import ORDERS, POOLINGS, Curve
from evaluation.report.results import close_look, label, rank
from evaluation.report.table import UNDEFINED, Cell, Column, Row, Table
from evaluation.scoring.runtime import Cost, Pass

_MIB = 1 << 20


def areas(curves: Sequence[Curve]) -> Table:
    """Area under each pruning curve: the mean accuracy over the share of heads removed."""
    methods = sorted({curve.method for curve in curves}, key=rank)
    poolings = [p for p in POOLINGS if any(curve.pooling == p and curve.order != "random" for curve in curves)]
    orders = [order for order in ORDERS if any(curve.order == order for curve in curves)]
    found = {(c.task, c.model, c.method, c.order, c.pooling): _area(c) for c in curves}
    rows = []
    for task, model in dict.fromkeys((curve.task, curve.model) for curve in curves):
        for method in methods:
            cells = []
            for order in orders:
                for pooling in poolings:
                    place = (task, model, method, *(("random", "none") if method == "random" else (order, pooling)))
                    cells.append(Cell(found[place]) if place in found else Cell(state=UNDEFINED))
            if any(cell.state != UNDEFINED for cell in cells):
                rows.append(Row(task, (model, label(method)), tuple(cells)))
    return Table(
        "pruning_area",
        "Area under the pruning curves",
        "Mean accuracy over the share of heads removed, percent: higher is better where the least relevant heads go "
        "first, lower where the most relevant do. Random is the mean over orders.",
        ("model", "method"),
        tuple(Column(ORDERS[order], POOLINGS[pooling]) for order in orders for pooling in poolings),
        tuple(rows),
    )


def cost_table(costs: Mapping[Pass, Cost]) -> Table:
    """Every measured pass: milliseconds a sample, tokens a second, peak memory."""
    rows = []
    for key, cost in costs.items():
        low, median, high = (1000 * seconds for seconds in cost.sample_s)
        peak = Cell(state=UNDEFINED) if cost.peak_bytes is None else Cell(cost.peak_bytes / _MIB)
        names = (key.model, key.method, key.stage, key.device, f"≤ {key.length}")
        cells = (Cell(median, n=cost.batches), Cell(low), Cell(high), Cell(cost.tokens_per_s), peak, Cell(cost.batches))
        rows.append(Row(key.task, names, cells))
    return Table(
        "runtime",
        "Measured passes",
        "Medians and quartiles over the batches of a run, by the padded length of the batch. One pass serves several "
        "methods and explanations: gradients is one forward and the backward passes of all of them.",
        ("model", "pass", "stage", "device", "tokens"),
        (
            Column("ms per sample", "median", digits=2),
            Column("ms per sample", "first quartile", digits=2),
            Column("ms per sample", "third quartile", digits=2),
            Column("", "tokens/s", digits=0),
            Column("", "peak MiB", digits=0),
            Column("", "batches", digits=0),
        ),
        tuple(rows),
    )


def _milliseconds(cost: Cost | None) -> Cell:
    if cost is None:
        return Cell(state=UNDEFINED)
    low, median, high = (1000 * seconds for seconds in cost.sample_s)
    return Cell(median, n=cost.batches, low=low, high=high) if cost.batches > 1 else Cell(median, n=1)


def explicit_against_modified(numbers: Sequence[Mapping[str, Any]]) -> Table:
    """Table 8 from rows of the schema "bench" of `closelook bench lrp`; of equal models and devices the last counts."""
    measured: dict[tuple[str, str], dict[str, float]] = {}
    for number in numbers:
        if number["part"] == "table_8" and number["measure"] in ("backward_ms", "speedup"):
            single = number["dtype"] in (None, "float32")
            model = number["model"] if single else f"{number['model']}, {number['dtype']}"
            name = number["method"] if number["measure"] == "backward_ms" else "speedup"
            measured.setdefault((model, number["device"]), {})[name] = number["value"]
    methods = ("gradient_x_input", "attnlrp_explicit", "attnlrp")
    rows = []
    for place, values in measured.items():
        found = [values.get(name) for name in (*methods, "speedup")]
        cells = [Cell(state=UNDEFINED) if value is None else Cell(value) for value in found]
        rows.append(Row("ours", place, tuple(cells)))
    source = "Ours come from `closelook bench lrp`" + ("." if rows else ", which was not run for this store.")
    return Table(
        "table8",
        "Table 8. Runtime of AttnLRP, explicit and by modified gradients",
        "Median milliseconds of the backward pass and aggregation of one sample of sva, single precision unless named; "
        f"the speedup is the median of per-sample ratios. {source}",
        ("model", "device"),
        (*(Column("", label(method)) for method in methods), Column("", "speedup", digits=2, unit="×")),
        (*rows, *_published_runtimes()),
        section="source",
    )


def _published_runtimes() -> list[Row]:
    numbers = {key[1:]: value for key, value in close_look().items() if key[0] == "8"}
    places = dict.fromkeys((model, gpu) for gpu, _, model, _, _ in numbers)
    columns = (("gradient_x_input", "ms"), ("attnlrp_explicit", "ms"), ("attnlrp", "ms"), ("attnlrp", "speedup"))
    return [
        Row("Close Look", place, tuple(Cell(numbers[place[1], "sva", place[0], *column]) for column in columns))
        for place in places
    ]


def _area(curve: Curve) -> float:
    return float(np.trapezoid(curve.accuracy, curve.removed / curve.removed[-1]))
