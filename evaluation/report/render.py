"""Tables as Markdown, LaTeX (booktabs) and CSV. HTML is made by the templates with :func:`cell_text`."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby

from evaluation.report.table import DONE, UNDEFINED, Cell, Column, Table
from evaluation.scoring.statistics import stars

NOTHING = "–"
MOST_DECIMALS = 3
MOST_COLUMNS = 12  # of numbers, beside each other on a page of LaTeX


def number(value: float, digits: int, signed: bool = False) -> str:
    """A number in text: its minus sign has the width of a digit, and a rounded zero has no sign."""
    text = f"{value:+,.{digits}f}" if signed else f"{value:,.{digits}f}"
    if not round(value, digits):
        text = text.lstrip("+-")
    return text.replace("-", "−")


def decimals(value: float, column: Column) -> int:
    """The number of digits behind the point: the column's, or as many as its significant digits ask for."""
    if column.significant is None or not value:
        return column.digits
    return min(MOST_DECIMALS, max(0, column.significant - 1 - math.floor(math.log10(abs(value)))))


def cell_text(cell: Cell, column: Column, close_look: bool = False) -> str:
    """Number, stars and interval, or the state. `close_look` adds the paper's number and ours minus it."""
    if cell.value is None:
        return why(cell)
    digits = decimals(cell.value, column)
    text = number(cell.value, digits, column.signed) + column.unit
    if cell.p is not None:
        text += stars(cell.p)
    if cell.low is not None and cell.high is not None and not column.signed:
        text += f" [{number(cell.low, digits)}, {number(cell.high, digits)}]"
    if close_look and cell.reference is not None and cell.difference is not None:
        text += f" ({cell.reference:g}, {number(cell.difference, digits, signed=True)})"
    return text


def why(cell: Cell) -> str:
    """Instead of a number: missing or partial, or a dash where the method or setting does not exist."""
    return NOTHING if cell.state in (UNDEFINED, DONE) else cell.state


def markdown(table: Table, close_look: bool = False) -> str:
    """One Markdown table for each section (task)."""
    escape = lambda text: text.replace("|", r"\|").replace("*", r"\*").replace("<", "&lt;")  # noqa: E731
    marks = {"best": "**{}**", "": "{}"}
    lines = [f"## {table.title}", "", escape(table.caption)]
    if close_look:
        lines += ["", f"In parentheses: the number of {table.paper}, and ours minus it."]
    heads = [escape(name) for name in table.heads]
    titles = [escape(" ".join(filter(None, (c.group, c.label, c.side)))) for c in table.columns]
    for section, rows in groupby(table.rows, key=lambda row: row.section):
        lines += ["", f"| {' | '.join([' · '.join(filter(None, (section, heads[0]))), *heads[1:], *titles])} |"]
        lines += ["|" + " --- |" * len(heads) + " ---: |" * len(titles)]
        for row in rows:
            cells = [
                marks[cell.mark].format(escape(cell_text(cell, column, close_look)))
                for cell, column in zip(row.cells, table.columns, strict=True)
            ]
            lines.append(f"| {' | '.join([*map(escape, row.labels), *cells])} |")
    if not table.rows:
        lines += ["", "Nothing to show: no cell of this store has both sides."]
    return "\n".join(lines) + "\n"


def latex(table: Table, close_look: bool = False) -> str:
    """A booktabs table; needs the packages booktabs and graphicx.

    Columns that do not fit a page stand in further tabulars below, no group of them torn apart where it fits, and what
    is wider than the text is shrunk to it.
    """
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
    """[start, end) of columns that stand beside each other."""
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
    """Some columns of every row."""
    marks = {"best": r"\textbf{%s}", "": "%s"}
    columns, width = table.columns[start:end], len(table.heads)
    lines = [rf"\begin{{tabular}}{{{'l' * width}{'r' * len(columns)}}}"]
    lines += [r"\toprule", *_latex_heads(table.heads, columns), r"\midrule"]
    sections = [(section, list(rows)) for section, rows in groupby(table.rows, key=lambda row: row.section)]
    for index, (section, rows) in enumerate(sections):
        if section:
            lines += [r"\midrule"] * (index > 0)
            lines.append(rf"\multicolumn{{{width + len(columns)}}}{{l}}{{\textbf{{{tex(section)}}}}} \\")
        for row in rows:
            cells = [
                marks[cell.mark] % tex(cell_text(cell, column, close_look))
                for cell, column in zip(row.cells[start:end], columns, strict=True)
            ]
            lines.append(" & ".join([*map(tex, row.labels), *cells]) + r" \\")
    return [*lines, r"\bottomrule", r"\end{tabular}"]


def comma_separated(table: Table) -> str:
    """One line a cell, with everything known about it, and an id that no other cell of the report has."""
    text = io.StringIO()
    known = ["value", "state", "n", "low", "high", "p", "mark", "reference", "difference"]
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["id", table.section, *table.heads, "group", "label", "side", *known])
    for row in table.rows:
        for cell, column in zip(row.cells, table.columns, strict=True):
            labels = [row.section, *row.labels, column.group, column.label, column.side]
            writer.writerow(["/".join([table.name, *labels]), *labels, *(getattr(cell, name) for name in known)])
    return text.getvalue()


def spans(columns: Sequence[Column], key: Callable[[Column], object]) -> Iterator[tuple[Column, int]]:
    """(first of its kind, how many) of neighbouring columns that agree in `key`."""
    for _, same in groupby(columns, key=key):
        run = list(same)
        yield run[0], len(run)


_TEX = {
    "\\": r"\textbackslash{}",
    "−": "$-$",
    "–": "--",
    "Δ": r"$\Delta$",
    "×": r"$\times$",
    "·": r"$\cdot$",
    "<": "$<$",
}
_TEX |= {
    "≤": r"$\leq$",
    "≥": r"$\geq$",
    "→": r"$\to$",
    "…": r"\ldots{}",
    "α": r"$\alpha$",
    "β": r"$\beta$",
    "²": "$^2$",
}
_TEX |= {">": "$>$", "|": r"$\vert$", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
_TEX |= {character: "\\" + character for character in "&%$#_{}"}


def tex(text: str) -> str:
    """`text` with LaTeX's own characters escaped."""
    return re.sub("|".join(map(re.escape, _TEX)), lambda match: _TEX[match.group()], text)


def _latex_heads(names: Sequence[str], columns: Sequence[Column]) -> Iterator[str]:
    """Up to three lines of column heads, with rules under what spans several columns; `names` are of the row labels."""
    width = len(names)
    levels: list[tuple[Callable[[Column], object], Callable[[Column], str]]] = [
        (lambda c: c.group, lambda c: c.group),
        (lambda c: (c.group, c.label), lambda c: c.label),
        (lambda c: (c.group, c.label, c.side), lambda c: c.side),
    ]
    levels = [level for level in levels if any(level[1](column) for column in columns)]
    for depth, (key, name) in enumerate(levels):
        last = depth == len(levels) - 1
        parts, rules, at = [], [], width + 1
        for column, count in spans(columns, key):
            parts.append(rf"\multicolumn{{{count}}}{{c}}{{{tex(name(column))}}}" if count > 1 else tex(name(column)))
            rules.append(rf"\cmidrule(lr){{{at}-{at + count - 1}}}")
            at += count
        heads = [tex(head) for head in names] if last else [""] * width
        yield " & ".join([*heads, *parts]) + r" \\"
        if not last:
            yield "".join(rules)
