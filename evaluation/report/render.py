"""Tables as Markdown, LaTeX (booktabs) and CSV; the templates render tables as HTML."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any

from closelook.evaluation.report.spreadsheet import csv_text
from closelook.evaluation.report.table import DONE, UNDEFINED, Cell, Column, Table
from closelook.evaluation.scoring.statistics import stars

NO_ROWS = "Nothing to show: this root holds no numbers for this table."
NOTHING = "–"
MOST_DECIMALS = 3
MOST_COLUMNS = 12  # columns of numbers beside each other on a page of LaTeX
#: Characters that LaTeX does not print as they are.
_TEX = {
    "\\": r"\textbackslash{}",
    "−": "$-$",
    "–": "--",
    "Δ": r"$\Delta$",
    "×": r"$\times$",
    "·": r"$\cdot$",
    "<": "$<$",
    "≤": r"$\leq$",
    "≥": r"$\geq$",
    "→": r"$\to$",
    "…": r"\ldots{}",
    "α": r"$\alpha$",
    "β": r"$\beta$",
    "²": "$^2$",
    ">": "$>$",
    "|": r"$\vert$",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
}
_TEX |= {character: "\\" + character for character in "&%$#_{}"}


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


def cell_text(cell: Cell, column: Column, close_look: bool = False) -> str:
    """The text of a cell: its number with stars and interval, or the reason that there is none.

    `close_look` adds the paper's number and the difference from it.
    """
    if cell.value is None:
        return reason(cell)
    digits = decimals(cell.value, column)
    text = number(cell.value, digits, column.signed) + column.unit
    if cell.p is not None:
        text += stars(cell.p)
    if cell.low is not None and cell.high is not None and not column.signed:
        text += f" [{number(cell.low, digits)}, {number(cell.high, digits)}]"
    if close_look and cell.reference is not None and cell.difference is not None:
        text += f" ({cell.reference:g}, {number(cell.difference, digits, signed=True)})"
    return text


def reason(cell: Cell) -> str:
    """The text of a cell without a number: its state, or a dash if the method or setting is not defined."""
    return NOTHING if cell.state in (UNDEFINED, DONE) else cell.state


def markdown(table: Table, close_look: bool = False) -> str:
    """The table in Markdown: title, caption, and a table for each section (task); `close_look` as for `cell_text`."""
    marks = {"best": "**{}**", "": "{}"}
    lines = [f"## {table.title}", "", _escaped(table.caption)]
    if close_look:
        lines += ["", f"In parentheses: the number of {table.paper}, and ours minus it."]
    first, *heads = [_escaped(name) for name in table.heads]
    titles = [_escaped(" ".join(filter(None, (c.group, c.label, c.side)))) for c in table.columns]
    for section, rows in groupby(table.rows, key=lambda row: row.section):
        corner = " · ".join(filter(None, (section, first)))
        lines += ["", f"| {' | '.join([corner, *heads, *titles])} |"]
        lines += ["|" + " --- |" * len(table.heads) + " ---: |" * len(titles)]
        for row in rows:
            texts = list(map(_escaped, row.labels))
            for cell, column in zip(row.cells, table.columns, strict=True):
                texts.append(marks[cell.mark].format(_escaped(cell_text(cell, column, close_look))))
            lines.append(f"| {' | '.join(texts)} |")
    if not table.rows:
        lines += ["", NO_ROWS]
    return "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
    """`text` with the characters escaped that have a meaning in Markdown tables."""
    return text.replace("|", r"\|").replace("*", r"\*").replace("<", "&lt;")


def latex(table: Table, close_look: bool = False) -> str:
    """The table in LaTeX, for the packages booktabs and graphicx; `close_look` as for `cell_text`.

    Columns that do not fit a page are in further tabulars below. Groups of columns stay together if they fit, and a
    tabular that is wider than the text is shrunk to its width.
    """
    # LaTeX numbers tables itself: "Table 1. " at the beginning of a title is left out.
    caption = table.title.split(". ", 1)[-1] + ". " + table.caption
    lines = [r"\begin{table*}", r"\centering\small"]
    for start, end in _pages(table.columns):
        lines += [
            r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%",
            *_tabular(table, start, end, close_look),
        ]
        lines += [r"}", r"\par\medskip"]
    lines += [rf"\caption{{{tex(caption)}}}", rf"\label{{tab:{table.name}}}"]
    return "\n".join([*lines, r"\end{table*}"]) + "\n"


def _pages(columns: Sequence[Column]) -> Iterator[tuple[int, int]]:
    """The ranges [start, end) of columns that stand side by side in a tabular, at most MOST_COLUMNS each."""
    start = at = 0
    for _, count in spans(columns, lambda column: (column.group, column.label if not column.group else "")):
        if at > start and at + count - start > MOST_COLUMNS:
            yield start, at
            start = at
        at += count
        while at - start > MOST_COLUMNS:
            yield start, start + MOST_COLUMNS
            start += MOST_COLUMNS
    if at > start or not columns:
        yield start, at


def _tabular(table: Table, start: int, end: int, close_look: bool) -> list[str]:
    """The lines of a tabular with the columns `start` to `end` of every row."""
    marks = {"best": r"\textbf{%s}", "": "%s"}
    columns, width = table.columns[start:end], len(table.heads)
    lines = [rf"\begin{{tabular}}{{{'l' * width}{'r' * len(columns)}}}"]
    lines += [r"\toprule", *_latex_heads(table.heads, columns), r"\midrule"]
    for index, (section, rows) in enumerate(groupby(table.rows, key=lambda row: row.section)):
        if section:
            lines += [r"\midrule"] * (index > 0)
            lines.append(rf"\multicolumn{{{width + len(columns)}}}{{l}}{{\textbf{{{tex(section)}}}}} \\")
        for row in rows:
            texts = list(map(tex, row.labels))
            for cell, column in zip(row.cells[start:end], columns, strict=True):
                texts.append(marks[cell.mark] % tex(cell_text(cell, column, close_look)))
            lines.append(" & ".join(texts) + r" \\")
    return [*lines, r"\bottomrule", r"\end{tabular}"]


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


def tex(text: str) -> str:
    r"""`text` with the characters that are special in LaTeX escaped.

    >>> tex("ΔA of 95 %")
    '$\\Delta$A of 95 \\%'
    """
    return re.sub("|".join(map(re.escape, _TEX)), lambda match: _TEX[match.group()], text)


def _latex_heads(names: Sequence[str], columns: Sequence[Column]) -> Iterator[str]:
    """Up to three lines of column heads, with rules under heads that span columns; `names` are heads of row labels."""
    width = len(names)
    fields = ("group", "label", "side")
    levels = [level for level, field in enumerate(fields) if any(getattr(column, field) for column in columns)]
    for level in levels:
        parts, rules, at = [], [], width + 1
        for column, count in spans(columns, attrgetter(*fields[: level + 1])):
            head = tex(getattr(column, fields[level]))
            parts.append(rf"\multicolumn{{{count}}}{{c}}{{{head}}}" if count > 1 else head)
            rules.append(rf"\cmidrule(lr){{{at}-{at + count - 1}}}")
            at += count
        is_last = level == levels[-1]
        heads = [tex(head) for head in names] if is_last else [""] * width
        yield " & ".join([*heads, *parts]) + r" \\"
        if not is_last:
            yield "".join(rules)
