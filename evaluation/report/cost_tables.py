"""Tables of what things cost: area under pruning curves, measured passes, and table 8 from the benchmark of lrp."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from evaluation.report.figures import ORDERS, POOLINGS, PruningCurve, curve_label
from evaluation.report.results import Methods, close_look, label, rank
from evaluation.report.table import DONE, MISSING, UNDEFINED, Cell, Column, Row, Table, mark
from evaluation.scoring.head_orders import NOT_POOLED, RANDOM
from evaluation.scoring.runtime import Cost, Pass

STAGES = {"forward": "forward", "backward": "backward", "aggregate": "aggregation", "method": "all"}
_MIB = 1 << 20


def areas(curves: Sequence[PruningCurve], methods: Methods, lacking: Collection[tuple[str, str, str]] = ()) -> Table:
    """Area under each pruning curve: the mean accuracy over the share of heads removed.

    `lacking` are (task, model, method) whose curves are wanted and not drawn: their cells are missing.
    """
    known = {(curve.task, curve.model, curve.method) for curve in curves}
    names = sorted({method for _, _, method in known.union(lacking)}, key=partial(rank, methods))
    columns = [
        (order, pooling)
        for order in ORDERS
        for pooling in POOLINGS
        if any((curve.order, curve.pooling) == (order, pooling) for curve in curves)
    ]
    measured = {(c.task, c.model, c.method, c.order, c.pooling): _area(c) for c in curves}
    rows = []
    rows_of = list(dict.fromkeys([*((c.task, c.model) for c in curves), *(pair[:2] for pair in sorted(lacking))]))
    tasks = list(dict.fromkeys(task for task, _ in rows_of))
    for task, model in sorted(rows_of, key=lambda pair: tasks.index(pair[0])):
        own = [m for m in names if (task, model, m) in known or (task, model, m) in lacking]
        by_column = []
        for order, pooling in columns:
            cells = []
            for method in own:
                drawn = (RANDOM, NOT_POOLED) if method == RANDOM else (order, pooling)
                value = measured.get((task, model, method, *drawn))
                state = DONE if value is not None else MISSING if (task, model, method) in lacking else UNDEFINED
                cells.append(Cell(value, state))
            by_column.append(mark(cells, digits=1, second=False, lower=order == "most_first"))
        cells_of = zip(*by_column, strict=True)
        rows += [
            Row(task, (model, curve_label(methods, method)), cells) for method, cells in zip(own, cells_of, strict=True)
        ]
    return Table(
        "pruning_area",
        "Area under the pruning curves",
        "Mean accuracy over the share of heads removed, percent: higher is better where the least relevant heads go "
        "first, lower where the most relevant do; the best of a model is bold. Random is the mean over orders.",
        ("model", "method"),
        tuple(Column(ORDERS[order], POOLINGS[pooling]) for order, pooling in columns),
        tuple(rows),
    )


def cost_table(costs: Mapping[Pass, Cost], methods: Methods) -> Table:
    """A row for each measured pass or method, model, precision, device and length; its stages stand side by side."""
    stages_of: dict[tuple[str, ...], dict[str, Cost]] = {}
    for key, cost in costs.items():
        labels = (key.task, key.model, key.dtype, label(methods, key.method), key.device, f"≤ {key.length}")
        stages_of.setdefault(labels, {})[key.stage] = cost
    rows = []
    for (task, *names), stages in stages_of.items():
        whole = stages.get("method")
        speed = Cell(state=UNDEFINED) if whole is None else Cell(whole.tokens_per_s)
        peak = None if whole is None else whole.peak_bytes
        memory = Cell(state=UNDEFINED) if peak is None else Cell(peak / _MIB)
        measured = (_milliseconds(stages.get(stage)) for stage in STAGES)
        cells = (*measured, speed, memory, Cell(next(iter(stages.values())).batches))
        rows.append(Row(task, tuple(names), cells))
    return Table(
        "runtime",
        "Measured passes",
        "Medians over the batches of a run, with quartiles where there are several, by the padded length of the batch. "
        "One pass serves several methods: gradients is one forward for all that need a gradient, whose backward passes "
        "and aggregation stand in rows of their own; a pass marked (labels) explains every label, with a backward "
        "each. A dash was not measured: memory on a CPU once a length only.",
        ("model", "precision", "pass", "device", "tokens"),
        (
            *(Column("ms per sample", name, significant=3, spread="quartiles") for name in STAGES.values()),
            Column("", "tokens/s", digits=0),
            Column("", "peak MiB", significant=3),
            Column("", "batches", digits=0),
        ),
        tuple(rows),
    )


def _milliseconds(cost: Cost | None) -> Cell:
    if cost is None:
        return Cell(state=UNDEFINED)
    low, median, high = (1000 * seconds for seconds in cost.sample_s)
    return Cell(median, n=cost.batches, low=low, high=high) if cost.batches > 1 else Cell(median, n=1)


def explicit_against_modified(numbers: Sequence[Mapping[str, Any]], methods: Methods) -> Table:
    """Table 8 from rows of the schema "bench" of `closelook bench lrp`; of equal models and devices the last counts.

    `methods` are all there are: the run need not have those of the table.
    """
    names = list(dict.fromkeys(key[4] for key in close_look() if key[0] == "8"))
    tasks = [number["task"] for number in numbers if number["part"] == "table_8" and number.get("task")]
    measured: dict[tuple[str, str], dict[str, float]] = {}
    for number in numbers:
        if number["part"] == "table_8" and number["measure"] in ("backward_ms", "speedup"):
            single = number["dtype"] in (None, "float32")
            model = number["model"] if single else f"{number['model']}, {number['dtype']}"
            name = number["method"] if number["measure"] == "backward_ms" else "speedup"
            measured.setdefault((model, number["device"]), {})[name] = number["value"]
    rows = []
    for labels, values in measured.items():
        known = [values.get(name) for name in (*names, "speedup")]
        cells = [Cell(state=UNDEFINED) if value is None else Cell(value) for value in known]
        rows.append(Row("ours", labels, tuple(cells)))
    source = "Ours come from `closelook bench lrp`" + ("." if rows else ", which was not run for this store.")
    return Table(
        "table8",
        "Table 8. Runtime of AttnLRP, explicit and by modified gradients",
        f"Median milliseconds of the backward pass and aggregation of one sample{_of(tasks)}, single precision unless "
        f"named; the speedup is the median of per-sample ratios. {source}",
        ("model", "device"),
        (*(Column("", label(methods, name)) for name in names), Column("", "speedup", digits=2, unit="×")),
        (*rows, *_published_runtimes(names)),
        section="source",
    )


def _of(tasks: Sequence[str]) -> str:
    return f" of {', '.join(dict.fromkeys(tasks))}" if tasks else ""


def _published_runtimes(names: Sequence[str]) -> list[Row]:
    """(GPU, model, method, measure) -> number; Close Look measured one task."""
    numbers = {(key[1], *key[3:]): value for key, value in close_look().items() if key[0] == "8"}
    pairs = dict.fromkeys((model, gpu) for gpu, model, _, _ in numbers)
    speedup = next(key[2:] for key in numbers if key[3] == "speedup")
    columns = [*((name, "ms") for name in names), speedup]
    return [
        Row("Close Look", pair, tuple(Cell(numbers[pair[1], pair[0], *column]) for column in columns)) for pair in pairs
    ]


def _area(curve: PruningCurve) -> float:
    return float(np.trapezoid(curve.accuracy, curve.removed / curve.removed[-1]))
