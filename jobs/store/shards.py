"""The store: the Parquet shards and JSON manifests of one root, at paths that artifacts name.

Every shard that is read is checked against a schema, and nothing is ever unpickled.
"""

from __future__ import annotations

import errno
import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from closelook.evaluation.schema import SchemaMismatch, check, is_named
from closelook.jobs.store.files import TEMPORARY, Damaged, Files, StoreError, Written, written
from closelook.jobs.store.retry import StillUnavailable, one_line, retried

T = TypeVar("T")
Columns = list[str] | None  # the columns that are read; None: all
RowsAndRejects = tuple[pa.Table, list[dict[str, Any]]]
_SMALL_BYTES = 1 << 20
_MANIFESTS = "manifest"  # the folder of manifests
_HELD_AT_ONCE = 8  # shards that `read_each` reads together from an object store
#: Errors of reading a file that is not Parquet, or is damaged. SchemaMismatch is a ValueError, so it is among them.
NOT_PARQUET = (OSError, pa.ArrowException, ValueError)
#: Keys in the metadata of a shard: its rejects, the key of its artifact, the name of its unit, its number of rows.
_REJECTS_KEY, _KEY, _UNIT, _ROWS = b"closelook.rejects", b"closelook.key", b"closelook.unit", b"closelook.rows"


@dataclass(frozen=True)
class Origin:
    """The unit of work that wrote a shard."""

    key: str  # of the artifact
    unit: str  # name of the unit


@dataclass(frozen=True)
class Shard:
    """A shard that was read and verified, all columns and pages of it."""

    table: pa.Table
    rejects: list[dict[str, Any]]  # rows of schema REJECT
    origin: Origin | None  # None if the metadata does not name it, or names another number of rows than the file has
    written: Written  # size, hash and rows of the file


class Store(Files):
    """The files of a root as shards, and as manifests: small JSON records that are replaced as a whole."""

    def __init__(self, root: str) -> None:
        super().__init__(root)
        self._manifests: dict[str, tuple[Any, bytes]] = {}  # (time and size, content) by path, as they were last read
        self._kept: dict[Any, tuple[Any, Any]] = {}  # (stamp, result) by name, see `kept`

    @staticmethod
    def runtime(model: str, task: str, dtype: str) -> str:
        """The folder of measured seconds of computing relevance. These files belong to no artifact and have no key."""
        return f"runtime/model={model}/task={task}/dtype={dtype}"

    def kept(self, name: Any, stamp: Any, make: Callable[[], T]) -> T:
        """The result of `make()`, kept in memory under `name`; made again when `stamp` differs from the kept one."""
        if name not in self._kept or self._kept[name][0] != stamp:
            self._kept[name] = stamp, make()
        return self._kept[name][1]

    def create(self) -> None:
        """Create the root, if needed, and test that it can be written to.

        Raises StoreError if it cannot, with the reason.
        """
        try:
            self.write_bytes(f"{TEMPORARY}probe", b"")
            self.delete(f"{TEMPORARY}probe")
        except OSError as error:
            raise StoreError(f"cannot write to the root {self.root}: {one_line(error)}{self._hint()}") from None

    def write_bytes(self, path: str, data: bytes) -> Written:
        """As `Files.write_bytes`; a manifest is read anew afterwards."""
        self._manifests.pop(path, None)  # two writes in one second have the same time on object stores
        return super().write_bytes(path, data)

    # Shards.

    def write_shard(
        self,
        path: str,
        table: pa.Table,
        schema: pa.Schema,
        rejects: pa.Table | None = None,
        origin: Origin | None = None,
    ) -> Written:
        """Write `table`, cast to `schema`, in one step. Raises pa.ArrowInvalid if its columns do not fit the schema.

        `rejects` (schema REJECT) are stored in the file's metadata, so that they are committed together with the rows.
        So is `origin`: a run that finds this shard of an unfinished artifact keeps it only if the origin is its own.
        """
        footer = dict(schema.metadata)
        if rejects is not None and rejects.num_rows:
            footer[_REJECTS_KEY] = json.dumps(rejects.to_pylist(), ensure_ascii=False).encode()
        if origin is not None:
            named = {_KEY: origin.key, _UNIT: origin.unit, _ROWS: str(table.num_rows)}
            footer |= {name: value.encode() for name, value in named.items()}
        return self.write_parts(path, [table], schema.with_metadata(footer))

    def write_parts(self, path: str, tables: Iterable[pa.Table], schema: pa.Schema) -> Written:
        """Write the rows of `tables` as one shard, in one step. Only one table is in memory uncompressed at a time."""
        buffer, rows = io.BytesIO(), 0
        floats, others = _leaves(schema)
        packing = {"compression": "zstd", "use_dictionary": others, "use_byte_stream_split": floats}
        with pq.ParquetWriter(buffer, schema, write_page_checksum=True, **packing) as writer:
            for table in tables:
                writer.write_table(table.select(schema.names).cast(schema))
                rows += table.num_rows
        return replace(self.write_bytes(path, buffer.getvalue()), rows=rows)

    def read(self, path: str | Iterable[str], schema: pa.Schema, columns: Columns = None) -> pa.Table:
        """The rows of one shard (`path` ends in .parquet), of all shards in a folder, or of a list of shards, in order.

        Raises FileNotFoundError for a missing file or an empty folder, SchemaMismatch for a file of another schema,
        Damaged for a file that is not, or no longer, valid Parquet.
        """
        if not isinstance(path, str):
            shards = list(path)
        elif path.endswith(".parquet"):
            shards = [path]
        else:
            shards = self.files(path)
        if not shards:
            raise FileNotFoundError(errno.ENOENT, "no Parquet files", self.url(str(path)))
        return pa.concat_tables(self._tables(shards, schema, columns))

    def read_each(self, shards: Sequence[str], schema: pa.Schema, columns: Columns = None) -> Iterator[pa.Table]:
        """The tables of the shards, in order, with at most _HELD_AT_ONCE of them in memory. Raises as `read` does."""
        window = 1 if self._local else _HELD_AT_ONCE
        for start in range(0, len(shards), window):
            yield from self._tables(shards[start : start + window], schema, columns)

    def _tables(self, shards: Sequence[str], schema: pa.Schema, columns: Columns) -> list[pa.Table]:
        """The table of each shard, without its rejects."""
        return self.at_once(lambda shard: self.read_shard(shard, schema, columns)[0], shards)

    def read_shard(self, path: str, schema: pa.Schema, columns: Columns = None) -> RowsAndRejects:
        """The rows of one shard and the rejects committed with them. Raises as `read` does."""

        def read() -> RowsAndRejects:
            with self._fs.open_input_file(self._at(path)) as stream:
                # A small file is read whole, in one request; of a large one only the footer and the columns are read.
                size = stream.size()
                if size > _SMALL_BYTES:
                    return self._parsed(path, stream, schema, columns)
                return self._parsed(path, pa.BufferReader(stream.read()), schema, columns)

        try:
            return retried(read)
        except (FileNotFoundError, StillUnavailable, SchemaMismatch):
            raise
        except NOT_PARQUET as error:
            url, reason = self.url(path), one_line(error)
            raise Damaged(f"{url} cannot be read, {reason}: remove it, then {self.remedy}") from error

    def _parsed(self, path: str, source: Any, schema: pa.Schema, columns: Columns) -> RowsAndRejects:
        """The columns of the Parquet file in `source`, and its rejects. Page checksums are verified."""
        return _without_footer(self._table(path, source, schema, columns))

    def _table(self, path: str, source: Any, schema: pa.Schema, columns: Columns = None) -> pa.Table:
        """The columns of the Parquet file in `source`, with its metadata; `path` names the file in SchemaMismatch."""
        file = pq.ParquetFile(source, pre_buffer=True, page_checksum_verification=True)
        if not is_named(file.schema_arrow):
            raise ValueError("its footer names no schema")
        check(file.schema_arrow, schema, self.url(path))
        return file.read(columns=columns)

    def read_committed(self, path: str, schema: pa.Schema) -> Shard | None:
        """The whole shard at `path`, all pages verified; None if it is missing, damaged or of another schema."""
        (data,) = self.read_all([path])
        if data is None:
            return None
        try:
            whole = self._table(path, pa.BufferReader(data), schema)
            table, rejects = _without_footer(whole)
        except NOT_PARQUET:
            return None
        origin = _origin_in(whole.schema.metadata, table.num_rows)
        return Shard(table, rejects, origin, replace(written(data), rows=table.num_rows))

    def has_column(self, path: str, column: str) -> bool:
        """True if the shard has a column of this name. Reads the footer alone."""
        return column in self._footer(path).schema.to_arrow_schema().names

    def has_values(self, path: str, column: str) -> bool:
        """True if the column of the shard has a value that is not null, or if the footer does not tell."""
        metadata = self._footer(path)
        for group in map(metadata.row_group, range(metadata.num_row_groups)):
            for chunk in map(group.column, range(group.num_columns)):
                counts = chunk.statistics
                has_values = counts is None or counts.null_count < chunk.num_values
                if has_values and chunk.path_in_schema.split(".")[0] == column:
                    return True
        return False

    def _footer(self, path: str) -> pq.FileMetaData:
        """The footer of a shard, read alone."""

        def read() -> pq.FileMetaData:
            with self._fs.open_input_file(self._at(path)) as stream:
                return pq.read_metadata(stream)

        return retried(read)

    # Manifests.

    def write_manifest(self, name: str, record: Mapping[str, Any]) -> None:
        """Write the manifest of this name, replacing an older one."""
        text = json.dumps(record, indent=1, sort_keys=True, ensure_ascii=False)
        self.write_bytes(manifest(name), text.encode())

    def manifest(self, name: str) -> dict[str, Any] | None:
        """The manifest of this name, read from its file; None if there is none."""
        (text,) = self.read_all([manifest(name)])
        return None if text is None else json.loads(text)

    def manifests(self) -> dict[str, bytes]:
        """The content of every manifest by its name. Every call lists them, but reads only new and changed ones."""
        stamps = self.stamps(_MANIFESTS, ".json")
        new = [path for path, stamp in stamps.items() if self._manifests.get(path, (None,))[0] != stamp]
        for path, content in zip(new, self.read_all(new), strict=True):
            self._manifests[path] = stamps[path], content or b""  # None: removed since they were listed
        return {path.removeprefix(f"{_MANIFESTS}/").removesuffix(".json"): self._manifests[path][1] for path in stamps}


def manifest(name: str) -> str:
    """The path of the manifest of this name."""
    return f"{_MANIFESTS}/{name}.json"


def _origin_in(named: Mapping[bytes, bytes], rows: int) -> Origin | None:
    """The origin in a shard's metadata; None if it has none, or its number of rows is not `rows`."""
    if named.get(_ROWS) != str(rows).encode() or not {_KEY, _UNIT} <= named.keys():
        return None
    return Origin(named[_KEY].decode(), named[_UNIT].decode())


def _without_footer(table: pa.Table) -> RowsAndRejects:
    """The table with only its schema's metadata, and the rejects that the shard's metadata held."""
    metadata = dict(table.schema.metadata)
    rejects = json.loads(metadata.pop(_REJECTS_KEY, b"[]"))
    for name in (_KEY, _UNIT, _ROWS):
        metadata.pop(name, None)
    return table.replace_schema_metadata(metadata), rejects


def _leaves(schema: pa.Schema) -> tuple[list[str], list[str]]:
    """(paths of float columns, paths of all others) as Parquet names them: lists are `NAME.list.element`.

    Floats are written with their bytes split, which compresses better; the others with a dictionary. Floats hardly
    repeat, so a dictionary of them would cost time and save no space.
    """
    floats: list[str] = []
    others: list[str] = []
    for column in schema:
        path, kind = column.name, column.type
        while pa.types.is_list(kind):
            path, kind = f"{path}.list.element", kind.value_type
        leaves = floats if pa.types.is_floating(kind) else others
        leaves.append(path)
    return floats, others
