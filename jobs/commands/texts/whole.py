"""Joins finished parts into the output files: rows by word, rows by token, and a list of unexplained rows."""

from __future__ import annotations

import csv
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from evaluation.explained.rows import Name
from evaluation.schema import TOKENS, WORDS
from jobs.commands.texts.content import Content, Unexplained
from jobs.commands.texts.parts import Folder, Part
from jobs.store import key_of
from lrp_core.records.types import UserError

_KEY = b"closelook.key"  # in a file's metadata: the hash of everything that its rows depend on


@dataclass(frozen=True)
class Output:
    """The output files of `closelook explain-file`."""

    path: Path  # rows by word

    def __post_init__(self) -> None:
        """Raise UserError unless `path` ends in .parquet and its folder exists."""
        if self.path.suffix != ".parquet":
            raise UserError(f"rows are written as Parquet: name the file {self.path.stem or 'explained'}.parquet")
        if not self.path.absolute().parent.is_dir():
            raise UserError(f"there is no folder {self.path.absolute().parent}: make it, or name another file")

    @property
    def tokens(self) -> Path:
        """The file of rows by token."""
        return self.path.with_suffix(".tokens.parquet")

    @property
    def unexplained(self) -> Path:
        """The list of rows without an explanation, which exists only if there are any."""
        return self.path.with_suffix(".unexplained.csv")

    @property
    def parts(self) -> Path:
        """The folder of finished parts, which is removed once they are joined."""
        return self.path.with_suffix(".parts")

    def key(self) -> str | None:
        """The key of the existing output files; None if they do not exist, "" if `path` is a file of something else."""
        if not (self.path.exists() and self.tokens.exists()):
            return None
        try:
            metadata = pq.read_schema(self.path).metadata or {}
        except pa.ArrowException:
            metadata = {}
        return metadata.get(_KEY, b"").decode()


def key_of_whole(content: Content, parts: Sequence[Part]) -> str:
    """The key of the joined parts: a hash of the parts' keys and of the file's rows that have their texts."""
    names = [[list(name) for name in names] for names in content.names.values()]
    bad = [[*row.name, row.reason] for row in content.bad]
    return key_of(parts=[part.key for part in parts], names=names, bad=bad)


def join(output: Output, folder: Folder, content: Content, parts: Sequence[Part]) -> list[Unexplained]:
    """Join the parts into the output files, each written in one step. Returns the rows without an explanation."""
    key = key_of_whole(content, parts)
    unexplained = [*content.bad]
    for part in parts:
        for at, reason in folder.errors(part).items():
            text = part.texts[at]
            unexplained += [Unexplained(name, content.places[text], reason) for name in content.names[text]]
    unexplained.sort(key=lambda row: row.name.row or 0)
    _write_list(output.unexplained, unexplained)
    _write(output.tokens, TOKENS, key, content, parts, folder.tokens)
    _write(output.path, WORDS, key, content, parts, folder.words)
    return unexplained


def _write(
    path: Path, schema: pa.Schema, key: str, content: Content, parts: Sequence[Part], file_of: Callable[[Part], Path]
) -> None:
    """Join the parts' files `file_of(part)` into the Parquet file `path`, in one step, with `key` in its metadata.

    The rows of a text are repeated for each of the user's rows that has it, with the id and number of that row.
    """
    schema = schema.with_metadata({**schema.metadata, _KEY: key.encode()})
    unfinished = path.with_name(f"{path.name}.unfinished")
    with pq.ParquetWriter(unfinished, schema) as writer:
        for part in parts:
            names = [content.names[text] for text in part.texts]
            writer.write_table(_named(pq.read_table(file_of(part)), names).cast(schema))
    os.replace(unfinished, path)


def _named(table: pa.Table, names: Sequence[Sequence[Name]]) -> pa.Table:
    """The rows of a part, repeated for every row of the user's file with the same text, with its `id` and `row`.

    In `table`, the column `row` holds the index of the text, ascending; `names` are the file's rows with each text.
    """
    number = table["row"].to_numpy()
    edges = np.searchsorted(number, np.arange(len(names) + 1))
    taken, of_name = [np.zeros(0, np.int64)], list[Name]()
    lengths = []
    for at, of_text in enumerate(names):
        rows = np.arange(edges[at], edges[at + 1])
        for name in of_text if len(rows) else ():
            taken.append(rows)
            of_name.append(name)
            lengths.append(len(rows))
    which = pa.array(np.repeat(np.arange(len(of_name)), lengths))
    table = table.take(pa.array(np.concatenate(taken)))
    for field, values in (("id", [name.id for name in of_name]), ("row", [name.row for name in of_name])):
        index = table.schema.get_field_index(field)
        column = pa.array(values, table.schema.field(field).type).take(which)
        table = table.set_column(index, table.schema.field(field), column)
    return table


def _write_list(path: Path, rows: Sequence[Unexplained]) -> None:
    """Write the rows without an explanation as CSV; with none, remove an old list."""
    if not rows:
        path.unlink(missing_ok=True)
        return
    with path.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(["row", "id", "where", "reason"])
        writer.writerows([row.name.row, row.name.id, row.where, row.reason] for row in rows)
