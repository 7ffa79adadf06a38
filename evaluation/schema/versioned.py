"""A Parquet schema with a name and a version, which it carries in its metadata: made, told, and checked."""

from __future__ import annotations

import pyarrow as pa

NAME_KEY, VERSION_KEY = b"closelook.schema", b"closelook.version"
STR, INT, FLOAT, BOOL = pa.string(), pa.int32(), pa.float64(), pa.bool_()


class SchemaMismatch(ValueError):
    """A file was written under another schema, or another version of it."""


def versioned(name: str, version: int, fields: list[tuple[str, pa.DataType, bool]]) -> pa.Schema:
    """Fields are (column, type, nullable)."""
    columns = [pa.field(column, kind, nullable=nullable) for column, kind, nullable in fields]
    return pa.schema(columns, metadata={NAME_KEY: name.encode(), VERSION_KEY: str(version).encode()})


def titled(schema: pa.Schema) -> str:
    """Name and version."""
    metadata = schema.metadata or {}
    return f"{metadata.get(NAME_KEY, b'unnamed').decode()} v{metadata.get(VERSION_KEY, b'?').decode()}"


def check(read: pa.Schema, expected: pa.Schema, where: str) -> None:
    """Raises SchemaMismatch unless `read`, from the file `where`, is `expected` in name, version and columns."""

    if titled(read) != titled(expected):
        raise SchemaMismatch(f"{where} holds schema {titled(read)}, this version of closelook reads {titled(expected)}")
    missing = [name for name in expected.names if name not in read.names]
    if missing:
        raise SchemaMismatch(f"{where} ({titled(read)}) lacks the columns {', '.join(missing)}")
