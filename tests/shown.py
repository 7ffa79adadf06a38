"""What a report shows: rows of its frame, and tables as lines of text."""

import csv
import io

from closelook.evaluation.report.frame import FRAME
from closelook.evaluation.report.render import decimals, number, reason


def rows_in(text):
    """The rows of a frame, from its CSV."""
    return list(csv.DictReader(io.StringIO(text, newline="")))


def numbers_of(store, table, **labels):
    """The rows of a table of the report in a store, with these labels."""
    rows = rows_in(store.read_bytes(f"report/{FRAME}").decode())
    return [row for row in rows if row["table"] == table and labels.items() <= row.items()]


def in_words(cell, column):
    """The number of a cell as printed, or the reason that there is none."""
    if cell.value is None:
        return reason(cell)
    return number(cell.value, decimals(cell.value, column), column.signed) + column.unit


def lines_of(table):
    """A line for each row of a table: its labels and its cells."""
    lines = []
    for row in table.rows:
        cells = [in_words(cell, column) for cell, column in zip(row.cells, table.columns, strict=True)]
        lines.append(" | ".join([*row.labels, *cells]))
    return lines
