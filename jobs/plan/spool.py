"""Tables of millions of samples in a driver with little memory.

Samples are hashed as they are read, then written to a temporary file that is mapped into memory: the system drops pages
that are not used. Few samples stay in memory, and are written only when another process of the machine has to read
them. Files are removed with their tables or with the process; those of killed processes are removed by the next one.
Rows are gathered chunk by chunk: pyarrow's `take` of a column of lists first copies the whole column, which for every
unit would cost the square of the samples.
"""

from __future__ import annotations

import fcntl
import glob
import hashlib
import io
import itertools
import os
import tempfile
import time
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import BinaryIO

import numpy as np
import pyarrow as pa

_PREFIX, _SUFFIX = "closelook-samples-", ".arrow"
_YOUNG_S = 60.0  # younger files are left alone
PART_ROWS = 1 << 18  # rows that are hashed, copied and written at a time; hashes depend on it


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
    hashed = Hashed(table.schema)
    for part in _parts([table], part_rows):
        hashed.add(part)
    return hashed.hexdigest()


class Hashed:
    """A hash of tables of one schema, to which tables are added one after the other."""

    def __init__(self, schema: pa.Schema) -> None:
        self._sink = _HashingFile()
        self._writer = pa.ipc.new_stream(pa.PythonFile(self._sink, "w"), schema.remove_metadata())

    def add(self, part: pa.Table) -> None:
        self._writer.write_table(part.replace_schema_metadata(None).combine_chunks())

    def hexdigest(self) -> str:
        self._writer.close()
        return self._sink.hash.hexdigest()


class _HashingFile(io.RawIOBase):
    """A file that keeps only the hash of what is written to it."""

    def __init__(self) -> None:
        self.hash = hashlib.sha256()

    def writable(self) -> bool:
        return True

    def write(self, data: bytes) -> int:  # type: ignore[override]
        self.hash.update(data)
        return len(data)


def spooled(
    tables: Iterable[pa.Table], hashed: Mapping[str, Sequence[str]], part_rows: int = PART_ROWS
) -> tuple[pa.Table, dict[str, str]]:
    """The rows of all `tables` as one table and, if it lies in a file, hashes of columns by name.

    `hashed` names the columns of each hash (see `digest_of`). Up to `part_rows` rows stay in memory, and have no
    hashes. Raises OSError if no temporary file can be written.
    """
    parts = _parts(tables, part_rows)
    waiting = list(itertools.islice(parts, 2))
    if len(waiting) == 1:
        return waiting[0], {}
    schema = waiting[0].schema
    digests = {name: Hashed(waiting[0].select(columns).schema) for name, columns in hashed.items()}
    with _new_file() as file, pa.ipc.new_file(file.sink, schema) as writer:
        while waiting:
            part = waiting.pop(0)
            for name, columns in hashed.items():
                digests[name].add(part.select(columns))
            writer.write_table(part)
            del part  # frees its memory before the next part is read
            if not waiting:
                waiting = list(itertools.islice(parts, 1))
    table = pa.ipc.open_file(pa.memory_map(file.path)).read_all()
    file.belongs_to(table)
    pa.default_memory_pool().release_unused()
    return table, {name: digest.hexdigest() for name, digest in digests.items()}


def file_of(table: pa.Table) -> str:
    """The path of the file that holds a table; it is written if there is none yet, and removed with the table.

    Raises OSError if no temporary file can be written.
    """
    known = _FILES.get(id(table))
    if known is not None:
        return known
    with _new_file() as file, pa.ipc.new_file(file.sink, table.schema) as writer:
        writer.write_table(table)
    file.belongs_to(table)
    return file.path


@dataclass(frozen=True)
class _File:
    """A temporary file, which this process holds locked until it removes it."""

    path: str
    sink: BinaryIO

    def belongs_to(self, table: pa.Table) -> None:
        """Remove the file when the table is no longer used."""
        _FILES[id(table)] = self.path
        weakref.finalize(table, _remove, id(table), self.path, self.sink, os.getpid())


_FILES: dict[int, str] = {}  # by the id of a table that is alive


@contextmanager
def _new_file() -> Iterator[_File]:
    """A temporary file to write; removed at once if that fails."""
    _remove_abandoned()
    descriptor, path = tempfile.mkstemp(prefix=_PREFIX, suffix=_SUFFIX)
    sink = os.fdopen(descriptor, "wb")
    try:
        fcntl.flock(sink, fcntl.LOCK_EX)
        yield _File(path, sink)
        sink.flush()
    except BaseException:
        sink.close()
        os.remove(path)
        raise


def _remove_abandoned() -> None:
    """Remove old temporary files that no living process holds locked."""
    for path in glob.glob(os.path.join(tempfile.gettempdir(), f"{_PREFIX}*{_SUFFIX}")):
        with suppress(OSError), open(path, "rb") as file:
            if time.time() - os.fstat(file.fileno()).st_mtime > _YOUNG_S:  # a younger one may not be locked yet
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.remove(path)


def _remove(table: int, path: str, sink: BinaryIO, owner: int) -> None:
    """Remove the file of a table, unless this is a forked process, whose parent still uses it."""
    _FILES.pop(table, None)
    if os.getpid() == owner:  # not in a fork
        sink.close()
        with suppress(FileNotFoundError):
            os.remove(path)


def _parts(tables: Iterable[pa.Table], part_rows: int) -> Iterator[pa.Table]:
    """Yield all rows as tables of `part_rows` rows, the last possibly smaller. `tables` holds at least one table.

    Each part is copied into one chunk, so that its hash does not depend on the files. If all rows fit into one part, it
    is not copied.
    """
    rest: pa.Table | None = None
    was_cut = False
    for table in tables:
        rest = table if rest is None else pa.concat_tables([rest, table])
        while rest.num_rows > part_rows:
            was_cut = True
            yield _copied(rest.slice(0, part_rows))
            rest = rest.slice(part_rows)
    yield _copied(rest) if was_cut else rest


def _copied(table: pa.Table) -> pa.Table:
    """The rows in memory of their own, in one chunk.

    A slice would keep the whole table alive, and its hash would show where it was cut.
    """
    columns = [pa.concat_arrays(column.chunks) for column in table.columns]  # `take` would copy twice
    return pa.Table.from_arrays(columns, schema=table.schema)
