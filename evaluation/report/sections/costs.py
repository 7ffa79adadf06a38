"""Costs of explanations: timed passes against length, table 8 of Close Look, and tables 4 and 5 of NormXLogit."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np

from closelook.evaluation.report.drawing import Curve, Panel, Plot, curve_panels
from closelook.evaluation.report.page import Figure
from closelook.evaluation.report.results import Methods, close_look, label, normxlogit_costs, ordered
from closelook.evaluation.report.table import Cell, Column, Entry, Table, fills, known

Stored = Mapping[str, Any]  # a row of the schema RUNTIME or BENCH


class Pass(NamedTuple):
    """The key of timed passes that are summarised together.

    `length` is the upper end of a bucket of lengths, a power of two; lengths are in tokens of the padded batch.
    """

    task: str
    model: str
    dtype: str
    device: str
    method: str  # name of the pass, which may serve several methods
    stage: str  # forward | backward | aggregate | method
    length: int


@dataclass(frozen=True)
class Cost:
    """The cost of a sample, over the timed batches of a pass. Seconds are (first quartile, median, third quartile)."""

    batches: int
    sample_s: tuple[float, float, float]
    tokens_per_s: float  # median over batches, padding included
    peak_bytes: int | None  # largest over batches; None on devices that do not report memory


def costs(rows: Iterable[Stored]) -> dict[Pass, Cost]:
    """Costs by pass, from rows of the schema RUNTIME with the columns `model`, `task` and `dtype` added."""
    groups: dict[Pass, list[Stored]] = defaultdict(list)
    for row in rows:
        measured = (row["task"], row["model"], row["dtype"], row["device"], row["method"], row["stage"])
        groups[Pass(*measured, bucket(row["length"]))].append(row)
    return {key: _cost(groups[key]) for key in sorted(groups)}


def bucket(length: int) -> int:
    """The smallest power of two that is at least `length`.

    >>> [bucket(length) for length in (1, 2, 3, 64, 65)]
    [1, 2, 4, 64, 128]
    """
    return 1 << max(0, length - 1).bit_length()


def _cost(rows: list[Stored]) -> Cost:
    """The cost over `rows`, one for each timed batch of a pass."""
    seconds = np.array([row["wall_s"] for row in rows])
    samples = np.array([row["batch"] for row in rows])
    tokens = samples * np.array([row["length"] for row in rows])
    low, median, high = np.quantile(seconds / samples, [0.25, 0.5, 0.75])
    peaks = [row["peak_bytes"] for row in rows if row["peak_bytes"] is not None]
    rate = float(np.median(tokens / seconds))
    return Cost(len(rows), (float(low), float(median), float(high)), rate, max(peaks, default=None))


STAGES = {"forward": "forward", "backward": "backward", "aggregate": "aggregation", "method": "all"}
NORMXLOGIT = "NormXLogit"
TABLE_4 = "table 4"  # the part of `closelook bench lrp` that measures NormXLogit's table 4
_MIB = 1 << 20
_MEMORY = "48 GiB"  # of NormXLogit's GPU
_DEVICE = ("BERT", "Quadro RTX 8000")  # NormXLogit's model and GPU


def runtime_figures(rows: Iterable[Stored]) -> list[Figure]:
    """Time, and memory if it is known, against length: two figures for each device.

    A figure has a panel for each model, with a line for each pass.

    `rows` are of the schema RUNTIME with the columns `model` and `dtype` added. Whole passes of all tasks are shown.
    """
    by_pass = costs(dict(row, task="") for row in rows if row["stage"] == "method")
    figures = []
    for number, device in enumerate(dict.fromkeys(key.device for key in by_pass)):
        on_device = {key: cost for key, cost in by_pass.items() if key.device == device}
        seconds = {key: [1000 * second for second in cost.sample_s] for key, cost in on_device.items()}
        peaks = {key: [np.nan, cost.peak_bytes / _MIB, np.nan] for key, cost in on_device.items() if cost.peak_bytes}
        of_time = ("runtime", "Time", "ms per sample", "Lines are medians over batches, bands are between quartiles.")
        of_memory = ("memory", "Memory", "peak MiB of a batch", "Memory beyond the weights.")
        for (name, title, unit, about), measured in ((of_time, seconds), (of_memory, peaks)):
            caption, axes = f"Both axes are logarithmic. {about}", ("tokens of the longest sample, up to", unit)
            plot = Plot(f"{name}_{number}", f"{title} against length, {device}", caption, axes, powers=True)
            figures += plot.figures(_cost_panels(measured), {})
    return figures


def _cost_panels(measured: Mapping[Pass, Sequence[float]]) -> list[Panel]:
    """A panel for each model and precision: `measured` (low, middle, high) against length, a line for each pass."""
    curves = []
    for (model, dtype, method), group in groupby(measured, key=lambda key: (key.model, key.dtype, key.method)):
        keys = list(group)
        low, middle, high = np.array([measured[key] for key in keys]).T
        curves.append(Curve(f"{model} · {dtype}", method, [key.length for key in keys], middle, low, high))
    lengths = [key.length for key in measured]
    limits = {"xscale": "log", "yscale": "log", "xlim": (min(lengths, default=1) / 1.2, max(lengths, default=1) * 1.2)}
    return curve_panels(curves, {}, axis=limits, linestyle="-", marker="o", markersize=3.5)


_MEASURED = {name: Column("ms per sample", name, significant=3, spread="quartiles") for name in STAGES.values()}
_MEASURED["tokens/s"] = Column("", "tokens/s", digits=0)
_MEASURED["peak MiB"] = Column("", "peak MiB", significant=3)
_MEASURED["batches"] = Column("", "batches", digits=0)


RUNTIME = Table(
    "runtime",
    "Measured passes",
    "Medians over the batches of a run, with quartiles if there are several batches, by the padded length of "
    "the batch. A pass may serve several methods: gradients is one forward pass for all methods that need a "
    "gradient; their backward passes and aggregation have rows of their own. A pass marked (labels) explains "
    "every label, with a backward pass for each. A dash: not measured; memory on a CPU is measured once for "
    "each length, for one sample.",
    ("model", "precision", "pass", "device", "tokens"),
    tuple(_MEASURED.values()),
)


@fills(RUNTIME)
def cost_table(costs: Mapping[Pass, Cost], methods: Methods) -> Iterator[Entry]:
    """A row for each timed pass or method, model, precision, device and length; a column for each stage."""
    columns = _MEASURED
    batches: dict[tuple[str, tuple[str, ...]], int] = {}
    for key, cost in costs.items():
        row = (key.task, (key.model, key.dtype, label(methods, key.method), key.device, f"≤ {key.length}"))
        low, median, high = (1000 * seconds for seconds in cost.sample_s)
        cell = Cell(median, n=cost.batches)
        if cost.batches > 1:
            cell = replace(cell, low=low, high=high)
        yield Entry(*row, columns[STAGES[key.stage]], cell)
        yield Entry(*row, columns["batches"], Cell(batches.setdefault(row, cost.batches)))
        if key.stage == "method":
            yield Entry(*row, columns["tokens/s"], Cell(cost.tokens_per_s))
            peak = None if cost.peak_bytes is None else cost.peak_bytes / _MIB
            yield Entry(*row, columns["peak MiB"], known(peak))


def explicit_against_modified(numbers: Sequence[Stored], methods: Methods) -> list[Table]:
    """Table 8, from rows of the schema "bench" in the run's store; none if it was not measured.

    Of rows with the same model and device, the last one counts. `methods` are all registered methods, since the run may
    lack those of the table.
    """
    ours = [number for number in numbers if number["part"] == "table_8"]
    tasks = dict.fromkeys(number["task"] for number in ours if number.get("task"))
    printed = {key: value for key, value in close_look().items() if key[0] == "8"}
    names = dict.fromkeys(key[4] for key in printed if key[5] == "ms")
    columns = {name: Column("", label(methods, name)) for name in names}
    columns["speedup"] = Column("", "speedup", digits=2, unit="×")
    frame = []
    for number in ours:
        if number["measure"] in ("backward_ms", "speedup"):
            single = number["dtype"] in (None, "float32")
            model = number["model"] if single else f"{number['model']}, {number['dtype']}"
            column = columns.get(number["method"] if number["measure"] == "backward_ms" else "speedup")
            if column is not None:
                frame.append(Entry("ours", (model, number["device"]), column, Cell(number["value"])))
    if not frame:
        return []
    for (_, gpu, _, model, name, measure), value in printed.items():
        column = columns["speedup" if measure == "speedup" else name]
        frame.append(Entry("Close Look", (model, gpu), column, Cell(value)))
    table = Table(
        "table8",
        "Table 8. Runtime of AttnLRP, explicit and by modified gradients",
        f"Median milliseconds of the backward pass and aggregation of one sample{' of ' * bool(tasks)}"
        f"{', '.join(tasks)}, in single precision unless the row names another; the speedup is the median of the "
        "ratios of samples. Models with random weights come from `closelook bench lrp`.",
        ("model", "device"),
        tuple(columns.values()),
        section="source",
    )
    return [table.filled(frame)]


SECONDS = Table(
    "seconds_by_length",
    "Seconds for one text, by its length",
    "As NormXLogit's table 4: one text at a time, on BERT's base model. Our numbers are with random weights: median "
    "and quartiles.",
    ("model", "device", "tokens"),
    section="source",
    paper=NORMXLOGIT,
)
BATCHES = Table(
    "largest_batches",
    "How many texts fit into memory",
    f"As NormXLogit's table 5: texts of 512 tokens in {_MEMORY}. Our numbers of texts are the memory that the weights "
    "leave, divided by the peak memory of one text on the named device. The time of one text in a batch of this size "
    "is the paper's; we did not measure it.",
    ("model", "device", "method"),
    (Column("", "texts", digits=0), Column("", "ms per text", digits=1)),
    section="source",
    paper=NORMXLOGIT,
)


def length_tables(numbers: Sequence[Stored], methods: Methods) -> list[Table]:
    """NormXLogit's tables 4 and 5; none if nothing was measured at its lengths. Of equal rows the last one counts.

    `methods` are all registered methods, since the run may lack those that were measured.
    """
    printed = normxlogit_costs()
    lengths = list(dict.fromkeys(int(tokens) for measure, tokens, _ in printed if measure == "seconds"))
    measured = [number for number in numbers if number["part"] == TABLE_4 and number["measure"] == "median"]
    measured = [number for number in measured if number["length"] in lengths]
    if not measured:
        return []
    shown = {number["method"] for number in measured} | {key[2] for key in printed}
    names = ordered(methods, shown)
    measured.sort(key=lambda number: (*_model(number), number["length"], names.index(number["method"])))
    columns = {name: Column("", label(methods, name), significant=3, spread="quartiles") for name in names}
    seconds, batches = [], []
    texts, per_text = BATCHES.columns
    for number in measured:
        name, (model, device) = number["method"], _model(number)
        cell = Cell(number["value"], n=number["n"], low=number["q1"], high=number["q3"])
        seconds.append(Entry("ours", (model, device, str(number["length"])), columns[name], cell))
        details = json.loads(number["details"])
        if number["length"] == lengths[-1] and details.get("memory") == _MEMORY:
            batches.append(Entry("ours", (model, device, label(methods, name)), texts, Cell(details["fit"])))
    for (measure, tokens, name), value in sorted(printed.items(), key=lambda item: names.index(item[0][2])):
        if measure == "seconds":
            seconds.append(Entry(NORMXLOGIT, (*_DEVICE, tokens), columns[name], Cell(value)))
        elif int(tokens) == lengths[-1]:
            column, scale = (texts, 1) if measure == "batch" else (per_text, 1000)
            batches.append(Entry(NORMXLOGIT, (*_DEVICE, label(methods, name)), column, Cell(scale * value)))
    return [replace(SECONDS, columns=tuple(columns.values())).filled(seconds), BATCHES.filled(batches)]


def _model(number: Stored) -> tuple[str, str]:
    """(the model's name with its precision and the number of layers that were measured, the device)."""
    name = f"{number['model']}, {json.loads(number['details'])['layers']} layers, {number['dtype']}"
    return name, number["device"]
