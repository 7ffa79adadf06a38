"""What methods cost by the length of a text, as NormXLogit's tables 4 and 5, from `closelook bench heads`."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

from evaluation.report.results import Methods, label, rank
from evaluation.report.table import UNDEFINED, Cell, Column, Row, Table

PAPER = "NormXLogit"
PART = "table 4"  # of the benchmark
_SECONDS, _BATCH, _OF_BATCH = "seconds", "batch", "batch_seconds"  # measures of the paper
_MEMORY = "48 GiB"  # the paper's
_DEVICE = ("BERT", "Quadro RTX 8000")  # the paper's

Number = Mapping[str, Any]  # a row of the schema "bench"


@cache
def published() -> Mapping[tuple[str, int, str], float]:
    """NormXLogit's tables 4 and 5: (measure, tokens, method) -> number."""
    with open(Path(__file__).with_name("normxlogit_costs.csv"), encoding="utf-8", newline="") as file:
        return {
            (measure, int(length), name): float(value) for measure, length, name, value in list(csv.reader(file))[1:]
        }


def length_tables(numbers: Sequence[Number], methods: Methods) -> list[Table]:
    """Both tables; none where nothing was measured at the paper's lengths. Of equal rows the last number counts.

    `methods` are all there are: the run need not have those that were measured.
    """
    lengths = list(dict.fromkeys(length for measure, length, _ in published() if measure == _SECONDS))
    measured = [number for number in numbers if number["part"] == PART and number["length"] in lengths]
    if not measured:
        return []
    names = sorted(
        {number["method"] for number in measured} | {key[2] for key in published()}, key=partial(rank, methods)
    )
    columns = [label(methods, name) for name in names]
    return [_seconds(measured, names, columns, lengths), _batches(measured, methods, names, lengths[-1])]


def _seconds(measured: Sequence[Number], names: Sequence[str], columns: Sequence[str], lengths: Sequence[int]) -> Table:
    ours: dict[tuple[str, str, int], dict[str, Cell]] = {}
    for number in measured:
        if number["measure"] == "median":
            labels = (_model(number), number["device"], number["length"])
            cell = Cell(number["value"], n=number["n"], low=number["q1"], high=number["q3"])
            ours.setdefault(labels, {})[number["method"]] = cell
    rows = [
        Row("ours", (model, device, str(length)), _cells(cells, names))
        for (model, device, length), cells in sorted(ours.items(), key=lambda item: item[0])
    ]
    rows += [Row(PAPER, (*_DEVICE, str(length)), _cells(_printed(_SECONDS, length), names)) for length in lengths]
    return Table(
        "seconds_by_length",
        "Seconds for one text, by its length",
        "As NormXLogit's table 4: one text at a time, on BERT's base model; ours with random weights, median and "
        "quartiles.",
        ("model", "device", "tokens"),
        tuple(Column("", name, significant=3, spread="quartiles") for name in columns),
        tuple(rows),
        section="source",
        paper=PAPER,
    )


def _batches(measured: Sequence[Number], methods: Methods, names: Sequence[str], length: int) -> Table:
    of_methods = [number for number in measured if (number["length"], number["measure"]) == (length, "median")]
    details = [json.loads(number["details"]) for number in of_methods]
    ours = {
        (_model(number), number["device"], number["method"]): told["fit"]
        for number, told in zip(of_methods, details, strict=True)
        if told.get("memory") == _MEMORY
    }
    rows = [
        Row("ours", (*labels, label(methods, name)), (Cell(fit), Cell(state=UNDEFINED)))
        for (*labels, name), fit in sorted(ours.items(), key=lambda item: (item[0][:2], names.index(item[0][2])))
    ]
    rows += [
        Row(
            PAPER,
            (*_DEVICE, label(methods, name)),
            (Cell(published()[_BATCH, length, name]), Cell(1000 * published()[_OF_BATCH, length, name])),
        )
        for name in names
        if (_BATCH, length, name) in published()
    ]
    return Table(
        "largest_batches",
        "How many texts fit into a memory",
        f"As NormXLogit's table 5: texts of {length} tokens in {_MEMORY}. Ours are what the weights leave, over the "
        "peak memory of one text on the device that is named; what one text takes when so many are explained at once "
        "is the paper's alone.",
        ("model", "device", "method"),
        (Column("", "texts", digits=0), Column("", "ms per text", digits=1)),
        tuple(rows),
        section="source",
        paper=PAPER,
    )


def _printed(measure: str, length: int) -> dict[str, Cell]:
    return {
        name: Cell(value) for (what, tokens, name), value in published().items() if (what, tokens) == (measure, length)
    }


def _cells(known: Mapping[str, Cell], names: Sequence[str]) -> tuple[Cell, ...]:
    return tuple(known.get(name, Cell(state=UNDEFINED)) for name in names)


def _model(number: Number) -> str:
    """The model's name with its precision and its layers, of which a CPU measures a few."""
    return f"{number['model']}, {json.loads(number['details'])['layers']} layers, {number['dtype']}"
