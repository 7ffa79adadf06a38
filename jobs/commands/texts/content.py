"""Reads a file of texts: every distinct text once, with the rows that have it, and rows without a text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any, NamedTuple

from evaluation.benchmark.samples import Malformed
from evaluation.benchmark.sources.base import field as field_of
from evaluation.benchmark.sources.files import IN_FOLDERS, fetch, records
from evaluation.benchmark.sources.own import ID, renamed
from evaluation.explained.rows import Name
from lrp_core.records.types import UserError

COLUMNS = ("text", "second", "target", "foil", ID)


class Text(NamedTuple):
    """A text to explain, with the arguments of `closelook.explain`."""

    text: str
    second: str | None = None
    target: str | None = None
    foil: str | None = None


@dataclass(frozen=True)
class Unexplained:
    """A row of the file that has no explanation."""

    name: Name
    where: str  # file:line
    reason: str


@dataclass
class Content:
    """The content of a file."""

    names: dict[Text, list[Name]] = field(default_factory=dict)  # the rows with each text, in the file's order
    places: dict[Text, str] = field(default_factory=dict)  # file:line of the first row with each text
    bad: list[Unexplained] = field(default_factory=list)  # rows without a text

    @property
    def rows(self) -> int:
        """The number of rows of the file."""
        return sum(map(len, self.names.values())) + len(self.bad)


def content_of(path: str, columns: Mapping[str, str]) -> Content:
    """The texts of the file, folder or pattern `path`; `columns` gives the file's name for columns of COLUMNS.

    Raises UserError for an unknown key in `columns`, and for a file that cannot be read or has no text.
    """
    for column in columns:
        if column not in COLUMNS:
            raise UserError(f"--column {column}=...: it must name one of {', '.join(COLUMNS)} before the =")
    content, numbers = Content(), count(1)
    for file in fetch(path, IN_FOLDERS):
        for where, record in records(file):
            row, number = renamed(record, columns), next(numbers)
            name = Name(_id_of(row, number), number)
            try:
                text = _text_of(row)
            except Malformed as error:
                content.bad.append(Unexplained(name, where, str(error)))
                continue
            content.names.setdefault(text, []).append(name)
            content.places.setdefault(text, where)
    if not content.rows:
        raise UserError(f"{path} is empty: it needs at least one row with a text")
    if not content.names:
        first = content.bad[0]
        raise UserError(f"no row of {path} holds a text; the first at {first.where}: {first.reason}")
    return content


def _id_of(record: Any, number: int) -> str:
    """The `id` of a row, else its number in the file."""
    name = record.get(ID) if isinstance(record, dict) else None
    return str(number) if name in (None, "") else str(name)


def _text_of(record: Any) -> Text:
    """The text of a row. Raises Malformed if it has none."""
    if isinstance(record, Malformed):
        raise record
    if isinstance(record, dict) and "text" not in record:
        known = list(map(str, record))
        raise Malformed("no column 'text'", f"there are {', '.join(known)}: name it with --column text=NAME")
    text = field_of(record, "text")
    if not text.strip():
        raise Malformed("empty text")
    return Text(text, *(_optional(record, name) for name in COLUMNS[1:4]))


def _optional(record: dict[str, Any], name: str) -> str | None:
    """The value of a column, None if it is missing or empty. Raises Malformed if it is no text."""
    return None if record.get(name) in (None, "") else field_of(record, name)
