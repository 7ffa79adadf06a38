"""The store: files of one root that are Parquet with a schema, or manifests; artifacts name their paths.

Every read is checked against a schema, and nothing is ever unpickled.
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

from evaluation.schema import SchemaMismatch, check
from jobs.store import damage
from jobs.store.files import TEMPORARY, Damaged, Files, StoreError, Written, written
from jobs.store.manifests import FEW, FEW_LOCAL, Manifests
from jobs.store.retry import StillUnavailable, one_line, retried
from jobs.store.root_format import FORMAT, format_of, write_format
from jobs.store.spent import COMMIT, READ, spending

T = TypeVar("T")
_SMALL_BYTES = 1 << 20
_HELD_AT_ONCE = 8  # shards, which a reader of one after another has in memory
#: Errors of reading a file that is no Parquet, or not as it was written; other schemas are among them.
NOT_PARQUET = (OSError, pa.ArrowException, ValueError)
#: In a shard's metadata: its rejects, and which unit of which artifact it holds, in how many rows.
_REJECTS_KEY, _KEY, _UNIT, _ROWS = b"closelook.rejects", b"closelook.key", b"closelook.unit", b"closelook.rows"


@dataclass(frozen=True)
class Origin:
    """The unit of an artifact that a shard holds."""

    key: str  # of the artifact
    unit: str  # name


@dataclass(frozen=True)
class Shard:
    """A shard that was read whole."""

    table: pa.Table
    rejects: list[dict[str, Any]]  # rows of REJECT
    origin: Origin | None  # None where the footer does not name it, or names another number of rows than there are
    written: Written


class Store(Files):
    """Shards, and small JSON records that are replaced as a whole: manifests."""

    def __init__(self, root: str) -> None:
        super().__init__(root)
        self._manifests = Manifests(self)
        self._kept: dict[Any, tuple[Any, Any]] = {}
        self._format: int | None = None  # None: not asked yet

    def forget_kept(self, name: Any) -> None:
        """Have what `kept` keeps under this name made again."""
        self._kept.pop(name, None)

    @staticmethod
    def runtime(model: str, task: str, dtype: str) -> str:
        """The folder of times taken while relevance was computed: measurements, which have no key."""
        return f"runtime/model={model}/task={task}/dtype={dtype}"

    def kept(self, name: Any, stamp: Any, make: Callable[[], T]) -> T:
        """The result of `make()`, kept under this name and made again when the stamp is another."""
        if name not in self._kept or self._kept[name][0] != stamp:
            self._kept[name] = stamp, make()
        return self._kept[name][1]

    def create(self) -> None:
        """Make the root and try a write.

        Raises StoreError for a root of a later format, and with the reason where it cannot be written.
        """
        try:
            self.check_format()
            self.write_bytes(f"{TEMPORARY}probe", b"")
            self.delete(f"{TEMPORARY}probe")
        except OSError as error:
            raise StoreError(f"cannot write to the root {self.root}: {one_line(error)}{self._hint()}") from None

    def check_format(self) -> None:
        """Raises StoreError for a root of a later format. The root is asked once."""
        if self._format is None:
            self._format = format_of(self)

    def adopt_format(self) -> None:
        """Let the root have this version's format: called before the first manifest is written."""
        self.check_format()
        if self._format != FORMAT:
            write_format(self)
            self._format = FORMAT

    def write_bytes(self, path: str, data: bytes) -> Written:
        self._manifests.forget(path)  # times of object stores are whole seconds
        return super().write_bytes(path, data)

    # Shards.

    @spending(COMMIT)
    def write_shard(
        self,
        path: str,
        table: pa.Table,
        schema: pa.Schema,
        rejects: pa.Table | None = None,
        origin: Origin | None = None,
    ) -> Written:
        """Write `table`, cast to `schema`, in one step. Raises pa.ArrowInvalid when columns do not fit the schema.

        `rejects` (of schema REJECT) travel in the file's metadata: they are committed with the rows or not at all.
        A run that finds the shard of an unfinished artifact keeps it only where its footer names the `origin`.
        """
        footer = dict(schema.metadata)
        if rejects is not None and rejects.num_rows:
            footer[_REJECTS_KEY] = json.dumps(rejects.to_pylist(), ensure_ascii=False).encode()
        if origin is not None:
            named = {_KEY: origin.key, _UNIT: origin.unit, _ROWS: str(table.num_rows)}
            footer |= {name: value.encode() for name, value in named.items()}
        return self.write_parts(path, [table], schema.with_metadata(footer))

    def write_parts(self, path: str, tables: Iterable[pa.Table], schema: pa.Schema) -> Written:
        """As `write_shard`, of a table that comes in parts: those already written are held only compressed."""
        buffer, rows = io.BytesIO(), 0
        floats, others = _leaves(schema)
        packing = {"compression": "zstd", "use_dictionary": others, "use_byte_stream_split": floats}
        with pq.ParquetWriter(buffer, schema, write_page_checksum=True, **packing) as writer:
            for table in tables:
                writer.write_table(table.select(schema.names).cast(schema))
                rows += table.num_rows
        return replace(self.write_bytes(path, buffer.getvalue()), rows=rows)

    @spending(READ)
    def read(self, path: str | Iterable[str], schema: pa.Schema, columns: list[str] | None = None) -> pa.Table:
        """The shard at `path`, all shards of that folder, or the shards of that list, in order.

        Raises FileNotFoundError for a missing file or an empty folder, SchemaMismatch for a file of another schema,
        StoreError for one that is no whole Parquet file.
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

    def read_each(
        self, shards: Sequence[str], schema: pa.Schema, columns: list[str] | None = None
    ) -> Iterator[pa.Table]:
        """The shards in order, a few in memory at a time. Raises as `read` does."""
        window = 1 if self._local else _HELD_AT_ONCE
        for start in range(0, len(shards), window):
            yield from self._tables(shards[start : start + window], schema, columns)

    def _tables(self, shards: Sequence[str], schema: pa.Schema, columns: list[str] | None) -> list[pa.Table]:
        return self.at_once(lambda shard: self.read_shard(shard, schema, columns)[0], shards)

    @spending(READ)
    def read_shard(
        self, path: str, schema: pa.Schema, columns: list[str] | None = None
    ) -> tuple[pa.Table, list[dict[str, Any]]]:
        """The rows of one shard and the rejects committed with them. Raises as `read` does."""

        def read() -> tuple[pa.Table, list[dict[str, Any]]]:
            with self._fs.open_input_file(self._at(path)) as stream:
                # A small file comes whole, in one request; of a large one, the footer and then the columns.
                whole = stream.size() <= _SMALL_BYTES
                source = pa.BufferReader(stream.read_buffer()) if whole else stream
                return self._parsed(path, source, schema, columns)

        try:
            return retried(read)
        except (FileNotFoundError, StillUnavailable, SchemaMismatch):
            raise
        except NOT_PARQUET:
            return self._read_again(path, schema, columns)

    def _parsed(
        self, path: str, source: Any, schema: pa.Schema, columns: list[str] | None
    ) -> tuple[pa.Table, list[dict[str, Any]]]:
        """The columns of the Parquet file in `source`, whose page checksums are verified, and its rejects."""
        return _without_footer(self._table(path, source, schema, columns))

    def _table(self, path: str, source: Any, schema: pa.Schema, columns: list[str] | None = None) -> pa.Table:
        file = pq.ParquetFile(source, pre_buffer=True, page_checksum_verification=True)
        check(file.schema_arrow, schema, self.url(path))
        return file.read(columns=columns)

    def _read_again(
        self, path: str, schema: pa.Schema, columns: list[str] | None
    ) -> tuple[pa.Table, list[dict[str, Any]]]:
        """The same from a second reading, whole, of a file that the first could not make sense of.

        Notes the damage and raises Damaged where this one cannot either.
        """
        data = self.read_bytes(path)
        try:
            return self._parsed(path, pa.BufferReader(data), schema, columns)
        except SchemaMismatch:
            raise
        except NOT_PARQUET as error:
            reason = one_line(error)
            damage.note(self, path, f"cannot be read, {reason}")
            raise Damaged(f"{self.url(path)} cannot be read, {reason}: `closelook run` makes it again") from error

    @spending(READ)
    def read_committed(self, path: str, schema: pa.Schema) -> Shard | None:
        """The shard at `path`, every page verified; None where there is none that can be read under the schema."""
        try:
            data = self.read_bytes(path)
        except FileNotFoundError:
            return None
        try:
            whole = self._table(path, pa.BufferReader(data), schema)
            table, rejects = _without_footer(whole)
        except NOT_PARQUET:
            return None
        origin = _origin_in(whole.schema.metadata, table.num_rows)
        return Shard(table, rejects, origin, replace(written(data), rows=table.num_rows))

    def read_any(self, path: str) -> tuple[pa.Table, list[dict[str, Any]], Origin | None]:
        """The rows, rejects and origin of a shard, whatever its schema.

        Raises FileNotFoundError, and StoreError for a file that is no whole Parquet file.
        """
        data = self.read_bytes(path)
        try:
            whole = pq.ParquetFile(pa.BufferReader(data), page_checksum_verification=True).read()
        except NOT_PARQUET as error:
            why = one_line(error)
            raise StoreError(f"{self.url(path)} cannot be read ({why}): `closelook run` makes it again") from None
        table, rejects = _without_footer(whole)
        return table, rejects, _origin_in(whole.schema.metadata, table.num_rows)

    def origin(self, path: str) -> Origin | None:
        """The unit that the shard at `path` holds, by its footer; None where it names none, or there is no shard."""

        def read() -> pq.FileMetaData:
            with self._fs.open_input_file(self._at(path)) as stream:
                return pq.read_metadata(stream)

        try:
            metadata = retried(read)
        except StillUnavailable:
            raise
        except NOT_PARQUET:
            return None
        return _origin_in(metadata.metadata or {}, metadata.num_rows)

    def has_column(self, path: str, column: str) -> bool:
        """True where a shard has a column of this name."""

        def read() -> bool:
            with self._fs.open_input_file(self._at(path)) as stream:
                return column in pq.read_schema(stream).names

        return retried(read)

    def has_values(self, path: str, column: str) -> bool:
        """True where a column of a shard holds anything but nulls, by its footer."""

        def read() -> bool:
            with self._fs.open_input_file(self._at(path)) as stream:
                metadata = pq.read_metadata(stream)
            for group in map(metadata.row_group, range(metadata.num_row_groups)):
                for chunk in map(group.column, range(group.num_columns)):
                    counts = chunk.statistics
                    has_values = counts is None or counts.null_count < chunk.num_values
                    if has_values and chunk.path_in_schema.split(".")[0] == column:
                        return True
            return False

        return retried(read)

    # Manifests.

    def write_manifest(self, name: str, record: dict[str, Any]) -> None:
        text = json.dumps(record, indent=1, sort_keys=True, ensure_ascii=False)
        self.write_bytes(f"manifest/{name}.json", text.encode())

    def manifest(self, name: str) -> dict[str, Any] | None:
        try:
            return json.loads(self.read_bytes(f"manifest/{name}.json"))
        except FileNotFoundError:
            return None

    def manifests(self) -> dict[str, bytes]:
        """The content of every manifest by its name. Listed every time; only new and changed ones are read."""
        return self._manifests.contents(self._few)

    def pack_manifests(self) -> None:
        """Leave a copy of all manifests, which takes one request to read, where there are more than a few new ones."""
        self._manifests.pack(self._few)

    @property
    def _few(self) -> int:
        """Manifests that are read file by file."""
        return FEW_LOCAL if self._local else FEW


def _origin_in(named: Mapping[bytes, bytes], rows: int) -> Origin | None:
    """The origin in a file's metadata; None where it names none, or another number of rows than there are."""
    if named.get(_ROWS) != str(rows).encode() or not {_KEY, _UNIT} <= named.keys():
        return None
    return Origin(named[_KEY].decode(), named[_UNIT].decode())


def _without_footer(table: pa.Table) -> tuple[pa.Table, list[dict[str, Any]]]:
    """The table without what the file's metadata holds beside its schema, and the rejects from there."""
    metadata = dict(table.schema.metadata)
    rejects = json.loads(metadata.pop(_REJECTS_KEY, b"[]"))
    for name in (_KEY, _UNIT, _ROWS):
        metadata.pop(name, None)
    return table.replace_schema_metadata(metadata), rejects


def _leaves(schema: pa.Schema) -> tuple[list[str], list[str]]:
    """Parquet's names of the columns of numbers with a fraction, whose bytes are split, and of all others.

    Fractions hardly repeat: a dictionary of them takes longer to make than they take to write, and saves nothing.
    """
    floats: list[str] = []
    others: list[str] = []
    for field in schema:
        path, kind = field.name, field.type
        while pa.types.is_list(kind):
            path, kind = f"{path}.list.element", kind.value_type
        columns = floats if pa.types.is_floating(kind) else others
        columns.append(path)
    return floats, others
