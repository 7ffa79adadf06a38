"""Parquet schemas with a name and a version in their metadata: made from classes, and checked when files are read.

The modules that describe columns have no `from __future__ import annotations`, since annotations are read here.
"""

from __future__ import annotations

from collections.abc import Iterable
from types import NoneType
from typing import Any, NewType, get_args, get_origin, get_type_hints

import pyarrow as pa

NAME_KEY, VERSION_KEY = b"closelook.schema", b"closelook.version"

Long = NewType("Long", int)  # 64 bits
Single = NewType("Single", float)  # 32 bits

_ARROW: dict[Any, pa.DataType] = {
    str: pa.string(),
    bytes: pa.binary(),
    bool: pa.bool_(),
    int: pa.int32(),
    Long: pa.int64(),
    Single: pa.float32(),
    float: pa.float64(),
}


class SchemaMismatch(ValueError):
    """Raised for a file that was written under another schema, or another version of it."""


def versioned(name: str, version: int, columns: type, numbers: Iterable[str] = ()) -> pa.Schema:
    """The schema whose columns are the annotated names of the class `columns`, in order; `| None` makes one nullable.

    `numbers` are further columns of nullable float32.
    """
    fields = [_field(column, kind) for column, kind in get_type_hints(columns).items()]
    fields += [_field(column, Single | None) for column in numbers]
    return pa.schema(fields, metadata={NAME_KEY: name.encode(), VERSION_KEY: str(version).encode()})


def _field(column: str, kind: Any) -> pa.Field:
    """The field of a column with the annotation `kind`; `X | None` makes it nullable."""
    parts = get_args(kind)
    if NoneType in parts:
        return pa.field(column, _arrow(parts[0]))
    return pa.field(column, _arrow(kind), nullable=False)


def _arrow(kind: Any) -> pa.DataType:
    """The Arrow type of an annotation without None, a list of such included."""
    if get_origin(kind) is list:
        [item] = get_args(kind)
        return pa.list_(_arrow(item))
    return _ARROW[kind]


def in_double(schema: pa.Schema) -> pa.Schema:
    """`schema` with lists of float64 for lists of float32."""
    single, double = pa.list_(pa.float32()), pa.list_(pa.float64())
    fields = [field.with_type(double) if field.type == single else field for field in schema]
    return pa.schema(fields, schema.metadata)


def titled(schema: pa.Schema) -> str:
    """The name and version of a schema, as "relevance v4"."""
    metadata = schema.metadata or {}
    return f"{metadata.get(NAME_KEY, b'unnamed').decode()} v{metadata.get(VERSION_KEY, b'?').decode()}"


def is_named(schema: pa.Schema) -> bool:
    """True if the metadata has a name and a version, as those of every file that closelook writes."""
    return {NAME_KEY, VERSION_KEY} <= (schema.metadata or {}).keys()


def check(read: pa.Schema, expected: pa.Schema, where: str) -> None:
    """Raises SchemaMismatch unless `read`, from the file `where`, is `expected` in name, version and columns."""
    if titled(read) != titled(expected):
        raise SchemaMismatch(
            f"{where} holds schema {titled(read)}, this version of closelook reads {titled(expected)}: run again, or "
            "use the version that wrote it"
        )
    missing = [name for name in expected.names if name not in read.names]
    if missing:
        columns = ", ".join(missing)
        raise SchemaMismatch(f"{where} ({titled(read)}) lacks the columns {columns}: remove it and run again")
