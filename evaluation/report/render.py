"""Tables as Markdown and CSV; the templates render tables as HTML."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import Any

from closelook.evaluation.report.spreadsheet import csv_text
from closelook.evaluation.report.table import DONE, UNDEFINED, Cell, Column, Table
from closelook.evaluation.scoring.statistics import stars

NO_ROWS = "Nothing to show: this root holds no numbers for this table."
NOTHING = "–"
MOST_DECIMALS = 3


def number(value: float, digits: int, signed: bool = False) -> str:
    """A number as text. The minus sign is as wide as a digit, and a number that rounds to zero has no sign.

    >>> number(-1.26, 1), number(-0.04, 1), number(1234.5, 0, signed=True)
    ('−1.3', '0.0', '+1,234')
    """
    text = f"{value:+,.{digits}f}" if signed else f"{value:,.{digits}f}"
    if not round(value, digits):
        text = text.lstrip("+-")
    return text.replace("-", "−")


def decimals(value: float, column: Column) -> int:
    """The number of decimals: the column's, or as many as its significant digits need, up to MOST_DECIMALS.

    >>> [decimals(value, Column("", "ms", significant=3)) for value in (123.4, 1.234, 0.01234)]
    [0, 2, 3]
    """
    if column.significant is None or not value:
        return column.digits
    return min(MOST_DECIMALS, max(0, column.significant - 1 - math.floor(math.log10(abs(value)))))


def cell_text(cell: Cell, column: Column) -> str:
    """The text of a cell: its number with stars and interval, or the reason that there is none."""
    if cell.value is None:
        return reason(cell)
    digits = decimals(cell.value, column)
    text = number(cell.value, digits, column.signed) + column.unit
    if cell.p is not None:
        text += stars(cell.p)
    if cell.low is not None and cell.high is not None and not column.signed:
        text += f" [{number(cell.low, digits)}, {number(cell.high, digits)}]"
    return text


def reason(cell: Cell) -> str:
    """The text of a cell without a number: its state, or a dash if the method or setting is not defined."""
    return NOTHING if cell.state in (UNDEFINED, DONE) else cell.state


def markdown(table: Table) -> str:
    """The table in Markdown: title, caption, and a table for each section (task), without the papers' numbers."""
    marks = {"best": "**{}**", "": "{}"}
    lines = [f"## {table.title}", "", _escaped(table.caption)]
    first, *heads = [_escaped(name) for name in table.heads]
    titles = [_escaped(" ".join(filter(None, (c.group, c.label, c.side)))) for c in table.columns]
    for section, rows in groupby(table.rows, key=lambda row: row.section):
        corner = " · ".join(filter(None, (section, first)))
        lines += ["", f"| {' | '.join([corner, *heads, *titles])} |"]
        lines += ["|" + " --- |" * len(table.heads) + " ---: |" * len(titles)]
        for row in rows:
            texts = list(map(_escaped, row.labels))
            for cell, column in zip(row.cells, table.columns, strict=True):
                texts.append(marks[cell.mark].format(_escaped(cell_text(cell, column))))
            lines.append(f"| {' | '.join(texts)} |")
    if not table.rows:
        lines += ["", NO_ROWS]
    return "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
    """`text` with the characters escaped that have a meaning in Markdown tables."""
    return text.replace("|", r"\|").replace("*", r"\*").replace("<", "&lt;")


def comma_separated(table: Table) -> str:
    """The table as CSV: a line for each cell with all its fields, and an id that is unique in the report."""
    fields = ["value", "state", "n", "low", "high", "p", "mark", "reference", "difference"]
    rows: list[list[Any]] = [["id", table.section, *table.heads, "group", "label", "side", *fields]]
    for row in table.rows:
        for cell, column in zip(row.cells, table.columns, strict=True):
            labels = [row.section, *row.labels, column.group, column.label, column.side]
            cell_id = "/".join([table.name, *labels])
            rows.append([cell_id, *labels, *(getattr(cell, field) for field in fields)])
    return csv_text(rows, "\n")


def spans(columns: Sequence[Column], key: Callable[[Column], object]) -> Iterator[tuple[Column, int]]:
    """Runs of neighbouring columns that agree in `key`: (first column, number of columns)."""
    for _, same in groupby(columns, key=key):
        run = list(same)
        yield run[0], len(run)
