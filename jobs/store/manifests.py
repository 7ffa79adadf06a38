"""Manifests, all at once.

An object store takes two requests for each manifest, so a run leaves them packed into one file too.

The pack is a copy for readers: a manifest counts as packed only where the store still lists it with its old stamp.
Times of object stores are whole seconds, so a manifest of the second in which the pack was written is read anew.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from contextlib import suppress

import pyarrow as pa
import pyarrow.parquet as pq

from jobs.store.files import Files

FOLDER = "manifest"
PACK = f"{FOLDER}/_packed"  # Parquet of the schema _PACKED
FEW = 8  # manifests that are read file by file rather than packed, where a request takes its time
FEW_LOCAL = 1000  # the same of a local root
_SECOND_NS = 10**9
_PACKED = pa.schema([("path", pa.string()), ("time_ns", pa.int64()), ("size", pa.int64()), ("content", pa.binary())])

#: A version of a file: its path, with its time of change in ns and its size.
Version = tuple[str, tuple[int, int]]


class Manifests:
    """The manifests of one store, as they were when they were last listed."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._known: dict[Version, bytes] = {}
        self._written: set[str] = set()  # paths since then: a version may be of another content
        self._packed: dict[Version, bytes] | None = None  # None until it was looked for

    def contents(self, few: int = FEW) -> dict[str, bytes]:
        """The content of every manifest by its name. Listed every time; read are those that are new or have changed.

        Where these are more than `few`, the pack is looked for.
        """
        listed = list(self._files.stamps(FOLDER, ".json").items())
        if self._packed is None and len(self._new(listed)) > few:
            self._packed = self._read_pack()
            self._known = self._packed | self._known
        new = self._new(listed)
        contents = self._files.read_all([path for path, _ in new])
        read = {version: content for version, content in zip(new, contents, strict=True) if content is not None}
        removed = set(new) - read.keys()  # since they were listed
        known = self._known | read
        self._known = {version: known[version] for version in listed if version not in removed}
        self._written.clear()
        names = [path.removeprefix(f"{FOLDER}/").removesuffix(".json") for path, _ in self._known]
        return dict(zip(names, self._known.values(), strict=True))

    def forget(self, path: str) -> None:
        """Have a manifest read again that is about to be written."""
        if path.startswith(FOLDER):
            self._written.add(path)

    def pack(self, few: int = FEW) -> None:
        """Write the pack anew where more than `few` manifests are not in it. Only the owner of the root may."""
        self.contents(few)
        if len(self._known.keys() - (self._packed or {}).keys()) > few:
            self._files.write_bytes(PACK, packed(self._known))
            self._packed = dict(self._known)

    def _new(self, listed: list[Version]) -> list[Version]:
        return [version for version in listed if version not in self._known or version[0] in self._written]

    def _read_pack(self) -> dict[Version, bytes]:
        """The packed manifests that cannot have changed unseen; none where there is no pack or a broken one."""
        (data,) = self._files.read_all([PACK])
        written_s = self._files.modified_s(PACK)
        if data is None or written_s is None:
            return {}
        with suppress(OSError, pa.ArrowException, KeyError):  # of a pack that is broken, or an older version's
            pack = pq.read_table(pa.BufferReader(data), page_checksum_verification=True).select(_PACKED.names)
            columns = [column.to_pylist() for column in pack.columns]
            before_ns = int(written_s) * _SECOND_NS
            return {
                (path, (time_ns, size)): content
                for path, time_ns, size, content in zip(*columns, strict=True)
                if time_ns < before_ns
            }
        return {}


def packed(manifests: Mapping[Version, bytes]) -> bytes:
    """The content of a pack of these manifests."""
    rows = [(path, time_ns, size, content) for (path, (time_ns, size)), content in manifests.items()]
    columns = [list(column) for column in zip(*rows, strict=True)] or [[]] * len(_PACKED)
    table = pa.table([pa.array(column, kind.type) for column, kind in zip(columns, _PACKED, strict=True)], _PACKED)
    buffer = io.BytesIO()
    pq.write_table(table, buffer, compression="zstd", use_dictionary=False, write_page_checksum=True)
    return buffer.getvalue()
