"""The report's frame: a row for every number that its tables and figures show, with an id that stays.

`numbers.csv` has a column for each kind of row label (task, model, method, ...), of which a row has those of its table.
A row of a figure, whose table is `figures/NAME`, is a point: its panel, its line, and its coordinates `x` and `value`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from closelook.evaluation.report.spreadsheet import csv_text
from closelook.evaluation.report.table import Cell, Column, Table

FRAME = "numbers.csv"
Row = dict[str, Any]
_PLACE = ("id", "table")
_COLUMN = ("x", "group", "label", "side", "unit")
_POINT = Column("", "")
_CELL = ("value", "state", "n", "low", "high", "p", "mark", "reference")


class Point(NamedTuple):
    """A point of a figure: a cell at `x` of a line of a panel."""

    panel: str
    line: str
    x: float
    cell: Cell


def numbers(tables: Iterable[Table], figures: Mapping[str, Iterable[Point]]) -> Iterator[Row]:
    """Yield the rows of all tables, then those of all figures, whose points are by the figure's name."""
    for table in tables:
        for row in table.rows:
            labels: Row = {table.section: row.section, **dict(zip(table.heads, row.labels, strict=True))}
            for column, cell in zip(table.columns, row.cells, strict=True):
                yield _row(table.name, labels, (column.group, column.label, column.side), column, cell)
    for name, points in figures.items():
        for point in points:
            place: Row = {"panel": point.panel, "line": point.line, "x": point.x}
            yield _row(f"figures/{name}", place, (), _POINT, point.cell)


def _row(table: str, labels: Row, heads: tuple[str, ...], column: Column, cell: Cell) -> Row:
    """The row of a cell, with the id that its table, its labels and the heads of its column make."""
    row: Row = {"id": "/".join(map(str, (table, *labels.values(), *heads))), "table": table, **labels}
    row |= {field: getattr(column, field) for field in _COLUMN if field != "x"}
    return row | {field: getattr(cell, field) for field in _CELL}


def frame_csv(rows: Iterable[Row]) -> str:
    """The frame as CSV; a row has nothing in columns of labels that its table lacks."""
    every = list(rows)
    labels = dict.fromkeys(name for row in every for name in row)
    names = [*_PLACE, *(name for name in labels if name not in (*_PLACE, *_COLUMN, *_CELL)), *_COLUMN, *_CELL]
    return csv_text([names, *([row.get(name) for name in names] for row in every)], "\n")
