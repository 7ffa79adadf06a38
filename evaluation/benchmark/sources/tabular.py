"""Files of rows with named columns: JSON Lines, a JSON list, CSV of any usual separator, Parquet; compressed or not."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

from evaluation.benchmark.samples import Malformed
from evaluation.benchmark.sources.files import (
    COMPRESSED,
    Record,
    csv_rows,
    encodable,
    json_lines,
    lines,
    named,
    readable,
)
from lrp_core.records.types import UserError

SEPARATORS = (",", ";", "\t")


def separated(file: Path) -> Iterator[Record]:
    """The rows of a CSV file with a header, as (file:line, {column: value}); a row of another length is Malformed.

    The separator is that of SEPARATORS which stands in the header most often; a comma where there is none. Raises
    UserError for a header that names a column twice.
    """
    first = next((line for _, line in lines(file) if isinstance(line, str)), "")
    header: list[str] | None = None
    for where, row in csv_rows(file, "utf-8-sig", _separator(first)):
        if isinstance(row, Malformed):
            yield where, row
        elif header is None:
            header = row
            if len(set(row)) < len(row):
                raise UserError(f"{file} has two columns of one name: {', '.join(row)}; rename one")
        elif len(row) != len(header):
            yield where, Malformed("not as many fields as the header has")
        else:
            yield where, named(header, row)


def _separator(header: str) -> str:
    """The separator that stands in the header most often, outside of quotation marks; the first of equal ones."""
    # Every second part between quotation marks is outside of them.
    unquoted = "".join(header.split('"')[::2])
    return max(SEPARATORS, key=unquoted.count)


def json_rows(file: Path) -> Iterator[Record]:
    """The entries of a JSON list, or of JSON Lines the object of each line.

    Raises UserError for a file that begins with "[" and is not JSON.
    """
    with readable(file) as stream:
        content = stream.read()
    if not content.lstrip().startswith(b"["):
        yield from json_lines(file)
        return
    try:
        entries = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{file} is not JSON: {error}") from None
    escaped = b"\\u" in content
    for index, entry in enumerate(entries):
        yield f"{file.name}[{index}]", encodable(entry) if escaped else entry


def parquet(file: Path) -> Iterator[Record]:
    """The rows, counted from 1. Raises UserError for a file that is not Parquet or is damaged."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        batches = pq.ParquetFile(file).iter_batches(batch_size=1024)
        rows: Iterator[Any] = chain.from_iterable(batch.to_pylist() for batch in batches)
        for number, row in enumerate(rows, start=1):
            yield f"{file.name}:{number}", row
    except (OSError, pa.ArrowException) as error:
        raise UserError(f"{file} is not Parquet that can be read: {' '.join(str(error).split())}") from None


_TEXTS: dict[str, Callable[[Path], Iterator[Record]]] = {
    ".jsonl": json_lines,
    ".json": json_rows,
    ".csv": separated,
    ".tsv": separated,
}
#: The reader of each kind of file, by the end of its name.
READERS = {kind + packed: reader for kind, reader in _TEXTS.items() for packed in ("", *COMPRESSED)}
READERS |= {".parquet": parquet}
#: The files that are read of a folder: JSON there may be the configuration of a model, and is read where it is named.
IN_FOLDERS = tuple(end for end in READERS if not end.startswith(".json") or end.startswith(".jsonl"))
KINDS = ", ".join((*_TEXTS, ".parquet"))


def records(file: Path) -> Iterator[Record]:
    """The rows of a file, each with its line (in Parquet its row, in a JSON list its index).

    Raises UserError for a file of another kind, and for one that cannot be decompressed.
    """
    reader = next((READERS[end] for end in READERS if file.name.endswith(end)), None)
    if reader is None:
        compressed = ", ".join(COMPRESSED)
        raise UserError(
            f"cannot read {file}: its name must end in one of {KINDS}; all but Parquet may be compressed ({compressed})"
        )
    return reader(file)
