"""Tables as data: a specification of a table, and the long frame of cells that fills it.

`render.py` writes filled tables.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import wraps
from typing import NamedTuple, ParamSpec

from closelook.evaluation.scoring.controls import ControlRow
from closelook.evaluation.scoring.faithfulness.areas import Agreement
from closelook.evaluation.scoring.faithfulness.scores import Summary
from closelook.evaluation.scoring.samples import NEAR_NOISE, NOISE, TELLING
from closelook.evaluation.scoring.samples import ROUNDING as SMALLEST
from closelook.evaluation.scoring.statistics import Comparison

Given = ParamSpec("Given")

DONE, PARTIAL, MISSING, UNDEFINED = "done", "partial", "missing", "undefined"
NOT_FINITE = "not finite"


@dataclass(frozen=True)
class Cell:
    """A number of a table, or the reason (`state`) that there is none."""

    value: float | None = None
    state: str = DONE
    n: int | None = None
    low: float | None = None  # 95 % interval
    high: float | None = None
    p: float | None = None  # p value of a difference
    mark: str = ""  # "best": the method is in the group that no other method beats
    reference: float | None = None  # the paper's number for the same cell

    @property
    def difference(self) -> float | None:
        """The number minus the paper's; None without both."""
        return None if self.value is None or self.reference is None else self.value - self.reference


UNDEFINED_CELL = Cell(state=UNDEFINED)


@dataclass(frozen=True)
class Column:
    """The heads and the format of a column."""

    group: str  # head that spans neighbouring columns, such as a method
    label: str  # such as a metric
    side: str = ""  # one setting of two that are compared
    signed: bool = False  # a difference, which is printed with its sign
    digits: int = 1  # decimals
    significant: int | None = None  # significant digits instead, for numbers that differ by orders of magnitude
    unit: str = ""
    spread: str = "95 % interval"  # the meaning of `low` and `high` in its cells


@dataclass(frozen=True)
class Row:
    """A row of a table."""

    section: str  # usually the task
    labels: tuple[str, ...]
    cells: tuple[Cell, ...]  # one for each column of the table


class Entry(NamedTuple):
    """A row of the long frame: a cell with its row (section and labels) and its column in the table."""

    section: str
    labels: tuple[str, ...]
    column: Column
    cell: Cell


@dataclass(frozen=True)
class Table:
    """A table whose rows have a cell for every column. Without rows it is a specification that `filled` completes."""

    name: str
    title: str
    caption: str
    heads: tuple[str, ...]  # names of the row labels
    columns: tuple[Column, ...] = ()
    rows: tuple[Row, ...] = ()
    section: str = "task"  # name of the sections of rows
    paper: str = "Close Look"  # the paper of the cells' references

    def filled(self, frame: Iterable[Entry | str]) -> Table:
        """This table with the cells of `frame`, whose strings are added to its caption.

        Columns that the specification does not name follow in the order of the frame; so do sections, and rows within
        a section. Cells that the frame lacks are undefined.
        """
        cells: dict[tuple[str, tuple[str, ...]], dict[Column, Cell]] = defaultdict(dict)
        columns = dict.fromkeys(self.columns)
        states, caption = set(), self.caption
        for item in frame:
            if isinstance(item, str):
                caption += item
                continue
            section, labels, column, cell = item
            cells[section, labels][column] = cell
            columns[column] = None
            states.add(cell.state)
        sections = list(dict.fromkeys(section for section, _ in cells))
        rows = []
        for section, labels in sorted(cells, key=lambda row: sections.index(row[0])):
            of_row = cells[section, labels]
            rows.append(Row(section, labels, tuple(of_row.get(column, UNDEFINED_CELL) for column in columns)))
        if NOISE in states:
            caption += (
                f" {NOISE}: on most samples, no token has more than {100 * SMALLEST:g} % of the logit, which is "
                "rounding error and not relevance."
            )
        if NEAR_NOISE in states:
            caption += (
                f" {NEAR_NOISE}: on most samples, no token has more than {100 * TELLING:g} % of the logit, which may "
                "be rounding error."
            )
        return replace(self, columns=tuple(columns), rows=tuple(rows), caption=caption)


def fills(table: Table) -> Callable[[Callable[Given, Iterable[Entry | str]]], Callable[Given, Table]]:
    """Decorator of a function that yields the cells of `table`, and strings for its caption: it returns the table."""

    def decorated(cells: Callable[Given, Iterable[Entry | str]]) -> Callable[Given, Table]:
        @wraps(cells)
        def filled(*args: Given.args, **kwargs: Given.kwargs) -> Table:
            return table.filled(cells(*args, **kwargs))

        return filled

    return decorated


def row_of(section: str, labels: tuple[str, ...], columns: Iterable[Column], cells: Iterable[Cell]) -> Iterator[Entry]:
    """The entries of a row, from its cells in the order of `columns`."""
    for column, cell in zip(columns, cells, strict=True):
        yield Entry(section, labels, column, cell)


SMALLEST_ROW = "Smallest difference told"  # label of the row of `smallest_differences`
UNSEEN = f"Differences of two methods that are below the row {SMALLEST_ROW} may go undetected (power 0.8)."


def smallest_differences(
    section: str, labels: tuple[str, ...], columns: Mapping[str, Column], compared: Comparison | None
) -> Iterator[Entry]:
    """A row of the smallest differences of two methods that the samples can tell, for the metrics in `columns`.

    Its labels are `labels` and SMALLEST_ROW. A cell is left out if the difference is not known, or if methods differ by
    a constant.
    """
    if compared is None:
        return
    for metric, column in columns.items():
        smallest = compared.smallest_by(metric) if metric in compared.metrics else None
        if smallest is not None:
            yield Entry(section, (*labels, SMALLEST_ROW), column, Cell(smallest))


BOLD = (
    "Bold: no other method is better on the samples that all methods have (paired test). Nothing is bold if no "
    "methods differ."
)


def marked_if_best(cell: Cell, compared: Comparison | None, method: str, measure: str, higher_is_better: bool) -> Cell:
    """`cell` with the mark "best" if no other method beats its method, and some method is beaten."""
    if compared is None or cell.value is None or compared.at(method, measure) is None:
        return cell
    first = compared.groups(measure, higher_is_better)[0]
    is_marked = method in first and len(first) < len(compared.methods)
    return replace(cell, mark="best") if is_marked else cell


def known(value: float | None) -> Cell:
    """The cell of a number; undefined for None."""
    return UNDEFINED_CELL if value is None else Cell(value)


def mean_cell(
    mean: Summary | Agreement | ControlRow, reference: float | None = None, otherwise: str = NOT_FINITE
) -> Cell:
    """The cell of a mean, with its interval if it has one; a cell in the state `otherwise` without samples."""
    if not mean.n or math.isnan(mean.value):
        return Cell(state=otherwise, reference=reference)
    return Cell(mean.value, DONE, mean.n, *_ends(mean.low, mean.high), reference=reference)


def compared_cell(compared: Comparison | None, method: str, metric: str) -> Cell:
    """The mean of a method with its interval; undefined if the method is not compared."""
    at = None if compared is None else compared.at(method, metric)
    if compared is None or at is None:
        return UNDEFINED_CELL
    low, high = interval_of(compared, method, metric)
    return Cell(float(compared.mean[at]), DONE, compared.n, low, high)


def interval_of(compared: Comparison | None, method: str, metric: str) -> tuple[float | None, float | None]:
    """The ends (low, high) of the interval of a method's mean; None if there is no interval."""
    at = None if compared is None else compared.at(method, metric)
    if compared is None or at is None:
        return None, None
    return _ends(compared.low[at], compared.high[at])


def _ends(low: float, high: float) -> tuple[float | None, float | None]:
    """The ends of an interval; None if they are NaN."""
    return (None, None) if math.isnan(low) else (float(low), float(high))


def difference_cell(
    compared: Comparison | None, method: str, other: str | None, metric: str, otherwise: Cell = UNDEFINED_CELL
) -> Cell:
    """The mean of a method minus the mean of `other` on the same samples, with its interval and p value.

    `otherwise` is returned if `other` is None or the method itself, and if either is not among those `compared`.
    """
    if compared is None or other is None:
        return otherwise
    at, base = compared.at(method, metric), compared.at(other, metric)
    if at is None or base is None or method == other:
        return otherwise
    difference = float(compared.mean[at] - compared.mean[base])
    if math.isnan(difference):
        return Cell(state=NOT_FINITE)
    pair = (at[0], *base)  # indices of method, other and metric
    low, high = _ends(compared.difference_low[pair], compared.difference_high[pair])
    return Cell(difference, DONE, compared.n, low, high, float(compared.p[pair]))
