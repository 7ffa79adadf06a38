"""Rows and hashes of tables that came in several files, and so are in several chunks.

Rows are gathered chunk by chunk: pyarrow's `take` of a column of lists first copies the whole column, which for every
unit would cost the square of the samples.
"""

from __future__ import annotations

import hashlib
import io

import numpy as np
import pyarrow as pa

PART_ROWS = 1 << 18  # rows that are copied and hashed at a time; hashes depend on it


def gather(table: pa.Table, rows: np.ndarray) -> pa.Table:
    """The rows with the indices `rows` [N] of a table of any number of chunks, in that order, in one chunk."""
    batches = table.to_batches()
    ends = np.cumsum([batch.num_rows for batch in batches])
    order = np.argsort(rows, kind="stable")
    ascending = rows[order]
    pieces = np.split(ascending, np.searchsorted(ascending, ends[:-1])) if batches else []
    parts = []
    for batch, end, piece in zip(batches, ends, pieces, strict=True):
        if len(piece):
            parts.append(batch.take(pa.array(piece - (end - batch.num_rows))))
    back = np.empty_like(order)
    back[order] = np.arange(len(order))
    return pa.Table.from_batches(parts, table.schema).combine_chunks().take(pa.array(back)).combine_chunks()


def digest_of(table: pa.Table, part_rows: int = PART_ROWS) -> str:
    """A hash of columns and values, in hex; it does not depend on chunks or files.

    `part_rows` rows are copied at a time.
    """
    sink = _HashingFile()
    with pa.ipc.new_stream(pa.PythonFile(sink, "w"), table.schema.remove_metadata()) as writer:
        for start in range(0, max(1, table.num_rows), part_rows):
            part = table if table.num_rows <= part_rows else _copied(table.slice(start, part_rows))
            writer.write_table(part.replace_schema_metadata(None).combine_chunks())
    return sink.hash.hexdigest()


def _copied(table: pa.Table) -> pa.Table:
    """The rows in memory of their own, in one chunk: the hash of a slice would show where it was cut."""
    columns = [pa.concat_arrays(column.chunks) for column in table.columns]  # `take` would copy twice
    return pa.Table.from_arrays(columns, schema=table.schema)


class _HashingFile(io.RawIOBase):
    """A file that keeps only the hash of what is written to it."""

    def __init__(self) -> None:
        self.hash = hashlib.sha256()

    def writable(self) -> bool:
        return True

    def write(self, data: bytes) -> int:  # type: ignore[override]
        self.hash.update(data)
        return len(data)
