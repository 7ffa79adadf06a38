"""CSV for spreadsheets, which take a cell for a formula and run it if its text begins with a sign such as `=`.

Texts of users, such as ids, labels and tokens, may begin so. An apostrophe before them makes them texts.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from io import StringIO
from typing import Any

_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def as_text(value: Any) -> Any:
    """A cell's value, with an apostrophe before a text that a spreadsheet would run; numbers stay as they are.

    Carriage returns become line feeds, because the module csv does not quote them where lines end with a line feed.

    >>> as_text("=1+1"), as_text("keys"), as_text(-1.5)
    ("'=1+1", 'keys', -1.5)
    """
    if not isinstance(value, str):
        return value
    text = value.replace("\r\n", "\n").replace("\r", "\n")
    return f"'{text}" if value.startswith(_FORMULA) else text


def csv_text(rows: Iterable[Sequence[Any]], line_end: str = "\r\n") -> str:
    """The rows as CSV, the first of which is the header; None is an empty cell."""
    text = StringIO(newline="")
    writer = csv.writer(text, lineterminator=line_end)
    for row in rows:
        writer.writerow(map(as_text, row))
    return text.getvalue()
