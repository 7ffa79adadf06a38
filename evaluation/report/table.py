"""A table as data: its specification, and the long frame of cells that fills it. `render.py` writes filled tables."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from evaluation.scoring.intervals import ROUNDING
from evaluation.scoring.samples import NOISE as SMALLEST
from evaluation.scoring.statistics import Comparison

DONE, PARTIAL, MISSING, UNDEFINED = "done", "partial", "missing", "undefined"
NOISE = "noise"  # computed, and nothing but rounding
NOT_FINITE = "not finite"


@dataclass(frozen=True)
class Cell:
    """One number, or the reason (`state`) that there is none. `reference` is the paper's number for the same cell."""

    value: float | None = None
    state: str = DONE
    n: int | None = None
    low: float | None = None  # 95 % interval
    high: float | None = None
    p: float | None = None  # of a difference
    mark: str = ""  # best: of the group that no other method beats
    reference: float | None = None

    @property
    def difference(self) -> float | None:
        """Ours minus the paper's."""
        return None if self.value is None or self.reference is None else self.value - self.reference


UNDEFINED_CELL = Cell(state=UNDEFINED)


@dataclass(frozen=True)
class Column:
    """The format of a column. `group` spans neighbours (a method), `label` is a metric, `side` one half of a pair."""

    group: str
    label: str
    side: str = ""
    signed: bool = False  # a difference: printed with its sign
    digits: int = 1
    significant: int | None = None  # digits of numbers that differ by orders of magnitude, instead of `digits`
    unit: str = ""
    spread: str = "95 % interval"  # what `low` and `high` of its cells are


@dataclass(frozen=True)
class Row:
    section: str  # the task
    labels: tuple[str, ...]
    cells: tuple[Cell, ...]


class Entry(NamedTuple):
    """A row of the long frame: one cell, with the row and the column of the table in which it stands."""

    section: str
    labels: tuple[str, ...]
    column: Column
    cell: Cell


@dataclass(frozen=True)
class Table:
    """A table: every row has a cell for every column. Without rows it is a specification, which `filled` completes."""

    name: str
    title: str
    caption: str
    heads: tuple[str, ...]  # names of the row labels
    columns: tuple[Column, ...] = ()
    rows: tuple[Row, ...] = ()
    section: str = "task"  # what the sections of rows are
    paper: str = "Close Look"  # whose numbers stand beside ours

    def filled(self, frame: Iterable[Entry], note: str = "") -> Table:
        """This table with the cells of `frame`, and `note` behind its caption; cells that it lacks are undefined.

        Columns that the specification does not name follow in the order of the frame, as do rows within sections.
        """
        cells: dict[tuple[str, tuple[str, ...]], dict[Column, Cell]] = defaultdict(dict)
        columns = dict.fromkeys(self.columns)
        states = set()
        for section, labels, column, cell in frame:
            cells[section, labels][column] = cell
            columns[column] = None
            states.add(cell.state)
        sections = list(dict.fromkeys(section for section, _ in cells))
        rows = []
        for section, labels in sorted(cells, key=lambda row: sections.index(row[0])):
            own = cells[section, labels]
            rows.append(Row(section, labels, tuple(own.get(column, UNDEFINED_CELL) for column in columns)))
        if NOISE in states:
            share = f"{100 * SMALLEST:.3f}".rstrip("0")
            note += f" {NOISE}: on most samples no token has more than {share} % of the logit, which is rounding, "
            note += "not relevance."
        return replace(self, columns=tuple(columns), rows=tuple(rows), caption=self.caption + note)


TOLD = "Smallest difference told"  # a row of tables
UNSEEN = "Differences of two methods below the smallest that is told may go unseen (a power of 0.8)."


def smallest_told(
    section: str, labels: tuple[str, ...], columns: Mapping[str, Column], compared: Comparison | None
) -> Iterator[Entry]:
    """A row, behind the methods of `labels`, of the smallest differences that the samples tell, by metric.

    There is none where nobody knows, nor of methods that differ by a constant.
    """
    if compared is None or compared.smallest is None:
        return
    for metric, column in columns.items():
        if metric in compared.metrics:
            smallest = float(compared.smallest[compared.metrics.index(metric)])
            if smallest > ROUNDING:
                yield Entry(section, (*labels, TOLD), column, Cell(smallest))


BOLD = "Bold: no other method is better on the samples that all have (paired test, Holm); nothing where none differ."


def of_group(cell: Cell, compared: Comparison | None, method: str, measure: str, higher_is_better: bool) -> Cell:
    """`cell` marked where its method is of the group that no other beats, and some method is not of it."""
    if compared is None or cell.value is None or compared.at(method, measure) is None:
        return cell
    first = compared.groups(measure, higher_is_better)[0]
    is_marked = method in first and len(first) < len(compared.methods)
    return replace(cell, mark="best") if is_marked else cell


def known(value: float | None) -> Cell:
    """The cell of a number, undefined without one."""
    return UNDEFINED_CELL if value is None else Cell(value)


def interval_of(compared: Comparison | None, method: str, metric: str) -> tuple[float | None, float | None]:
    """The ends of the interval of a method's mean; None where it is not compared."""
    at = None if compared is None else compared.at(method, metric)
    if compared is None or at is None:
        return None, None
    return float(compared.low[at]), float(compared.high[at])


def difference_cell(
    compared: Comparison | None, method: str, other: str | None, metric: str, otherwise: Cell = UNDEFINED_CELL
) -> Cell:
    """The mean of a method minus that of `other` on the same samples, with its interval and p value.

    `otherwise` is the cell where they are not compared; a method has none against itself.
    """
    if compared is None or other is None:
        return otherwise
    at, base = compared.at(method, metric), compared.at(other, metric)
    if at is None or base is None or method == other:
        return otherwise
    difference = float(compared.mean[at] - compared.mean[base])
    if difference != difference:
        return Cell(state=NOT_FINITE)
    pair = (at[0], *base)  # method, other, metric
    low, high = float(compared.difference_low[pair]), float(compared.difference_high[pair])
    return Cell(difference, DONE, compared.n, low, high, float(compared.p[pair]))
