"""The store: files of one root that are Parquet with a schema, or manifests; artifacts name their paths.

Every read is checked against a schema, and nothing is ever unpickled.
"""

from __future__ import annotations

import errno
import io
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from evaluation.schema import check
from jobs.store.files import Files, StoreError
from jobs.store.manifests import Manifests
from jobs.store.retry import one_line, retried
from jobs.store.spent import COMMIT, READ, spending

T = TypeVar("T")
_SMALL_BYTES = 1 << 20
_HELD_AT_ONCE = 8  # shards, which a reader of one after another has in memory
_REJECTS_KEY = b"closelook.rejects"  # in a shard's metadata


class Store(Files):
    """Shards, and small JSON records that are replaced as a whole: manifests."""

    def __init__(self, root: str) -> None:
        super().__init__(root)
        self._manifests = Manifests(self)
        self._kept: dict[Any, tuple[Any, Any]] = {}

    @staticmethod
    def runtime(model: str, task: str, dtype: str) -> str:
        """The folder of times taken while relevance was computed: measurements, which have no key."""
        return f"runtime/model={model}/task={task}/dtype={dtype}"

    def kept(self, name: Any, stamp: Any, make: Callable[[], T]) -> T:
        """The result of `make()`, kept under this name and made again when the stamp is another."""
        if name not in self._kept or self._kept[name][0] != stamp:
            self._kept[name] = stamp, make()
        return self._kept[name][1]

    def write_bytes(self, path: str, data: bytes) -> None:
        self._manifests.forget(path)  # times of object stores are whole seconds
        super().write_bytes(path, data)

    # Shards.

    @spending(COMMIT)
    def write_shard(self, path: str, table: pa.Table, schema: pa.Schema, rejects: pa.Table | None = None) -> None:
        """Write `table`, cast to `schema`, in one step. Raises pa.ArrowInvalid when columns do not fit the schema.

        `rejects` (of schema REJECT) travel in the file's metadata: they are committed with the rows or not at all.
        """
        if rejects is not None and rejects.num_rows:
            text = json.dumps(rejects.to_pylist(), ensure_ascii=False)
            schema = schema.with_metadata({**schema.metadata, _REJECTS_KEY: text.encode()})
        self.write_parts(path, [table], schema)

    def write_parts(self, path: str, tables: Iterable[pa.Table], schema: pa.Schema) -> None:
        """As `write_shard`, of a table that comes in parts: those already written are held only compressed."""
        buffer = io.BytesIO()
        floats, others = _leaves(schema)
        packing = {"compression": "zstd", "use_dictionary": others, "use_byte_stream_split": floats}
        with pq.ParquetWriter(buffer, schema, **packing) as writer:
            for table in tables:
                writer.write_table(table.select(schema.names).cast(schema))
        self.write_bytes(path, buffer.getvalue())

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
        return self._at_once(lambda shard: self.read_shard(shard, schema, columns)[0], shards)

    @spending(READ)
    def read_shard(
        self, path: str, schema: pa.Schema, columns: list[str] | None = None
    ) -> tuple[pa.Table, list[dict[str, Any]]]:
        """The rows of one shard and the rejects committed with them. Raises as `read` does."""

        def read() -> pa.Table:
            with self._fs.open_input_file(self._at(path)) as stream:
                # A small file comes whole, in one request; of a large one, the footer and then the columns.
                whole = stream.size() <= _SMALL_BYTES
                file = pq.ParquetFile(pa.BufferReader(stream.read_buffer()) if whole else stream, pre_buffer=True)
                check(file.schema_arrow, schema, self.url(path))
                return file.read(columns=columns)

        try:
            table = retried(read)
        except pa.ArrowInvalid as error:
            advice = "remove it and run again"
            raise StoreError(f"{self.url(path)} cannot be read, {one_line(error)}: {advice}") from error
        metadata = dict(table.schema.metadata)
        rejects = json.loads(metadata.pop(_REJECTS_KEY, b"[]"))
        return table.replace_schema_metadata(metadata), rejects

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
        return self._manifests.contents(packed=not self._local)

    def pack_manifests(self) -> None:
        """Leave a copy of all manifests that takes one request to read; local files take none."""
        if not self._local:
            self._manifests.pack()


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
