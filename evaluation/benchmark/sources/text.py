"""Plain text: files with a text in each line, or a data set on the hub with a column of texts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from evaluation.benchmark.samples import Malformed, Row, sample
from evaluation.benchmark.sources.base import Source, field, one_sample
from evaluation.benchmark.sources.files import Record

LONGEST_BYTES = 1 << 20  # of a line; a file without line ends must not fill the memory


def lines(file: Path) -> Iterator[Record]:
    """(file:line, its text) of every line; Malformed for a line that is empty, binary, not UTF-8 or too long."""
    with file.open("rb") as stream:
        number = 0
        while raw := stream.readline(LONGEST_BYTES):
            number += 1
            yield f"{file.name}:{number}", _text(raw)
            while len(raw) == LONGEST_BYTES and not raw.endswith(b"\n"):
                raw = stream.readline(LONGEST_BYTES)


def _text(raw: bytes) -> str | Malformed:
    """The text of a line without white space around it, or Malformed."""
    if b"\0" in raw:
        return Malformed("binary")
    if len(raw) == LONGEST_BYTES and not raw.endswith(b"\n"):
        return Malformed("a line of more than a MiB")
    try:
        return raw.decode().strip() or Malformed("empty")
    except UnicodeDecodeError:
        return Malformed("not UTF-8")


def texts(record: Any, column: str) -> Iterator[str]:
    """The text of a record: a line, or a row of the hub, whose `column` holds it. Raises Malformed."""
    yield record if isinstance(record, str) else field(record, column)


def parse(record: Any) -> Row:
    """The sample of a text. Raises Malformed for an empty one."""
    (text,) = texts(record, "text")
    return sample(TEXT.name, text)


TEXT = Source(
    name="text",
    title="a text a line",
    url="",
    licence="the user's own",
    suffixes=(".txt",),
    records=lines,
    rows=one_sample(parse),
    hub_splits=("train",),
    texts=texts,
)
