"""A table as data: what every cell holds, or why it holds nothing. How it looks is in `render.py`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from evaluation.scoring.samples import NOISE as SMALLEST

DONE, PARTIAL, MISSING, UNDEFINED = "done", "partial", "missing", "undefined"
NOISE = "noise"  # computed, and nothing but rounding


@dataclass(frozen=True)
class Cell:
    """One number, or why there is none (`state`). `reference` is the paper's number for the same cell."""

    value: float | None = None
    state: str = DONE
    n: int | None = None
    low: float | None = None  # 95 % interval
    high: float | None = None
    p: float | None = None  # of a difference
    mark: str = ""  # best | second
    reference: float | None = None

    @property
    def difference(self) -> float | None:
        """Ours minus the paper's."""
        return None if self.value is None or self.reference is None else self.value - self.reference


@dataclass(frozen=True)
class Column:
    """`group` spans neighbouring columns (a method), `label` is a metric, `side` one half of a pair."""

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


@dataclass(frozen=True)
class Table:
    """`heads` name the row labels. Every row has a cell for every column."""

    name: str
    title: str
    caption: str
    heads: tuple[str, ...]
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    section: str = "task"  # what the sections of rows are
    paper: str = "Close Look"  # whose numbers stand beside ours


def mark(cells: Sequence[Cell], digits: int, second: bool = True, lower: bool = False) -> list[Cell]:
    """`cells` of one metric with the best marked and the second best, as they are printed: equal digits are ties.

    The best is the highest, or with `lower` the lowest.
    """
    shown = [None if cell.value is None else round(cell.value, digits) for cell in cells]
    ranked = sorted({value for value in shown if value is not None}, reverse=not lower)
    if len(ranked) < 2:
        return list(cells)
    marks = {ranked[0]: "best"} | ({ranked[1]: "second"} if second else {})
    return [
        cell if value is None else replace(cell, mark=marks.get(value, ""))
        for cell, value in zip(cells, shown, strict=True)
    ]


def with_noise_told(table: Table) -> Table:
    """`table` whose caption says what noise is, where a cell is marked so."""
    if not any(cell.state == NOISE for row in table.rows for cell in row.cells):
        return table
    share = f"{100 * SMALLEST:.3f}".rstrip("0")
    note = f" {NOISE}: on most samples no token has more than {share} % of the logit, which is rounding, not relevance."
    return replace(table, caption=table.caption + note)
