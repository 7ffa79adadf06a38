"""Numbers as text, for templates and sentences."""

from __future__ import annotations

import math

from closelook.evaluation.report.table import DONE, UNDEFINED, Cell, Column

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


def reason(cell: Cell) -> str:
    """The text of a cell without a number: its state, or a dash if the method or setting is not defined."""
    return NOTHING if cell.state in (UNDEFINED, DONE) else cell.state
