"""All manifests of a store, read one by one or from a pack (one file with copies of many), and records that they share.

Reading a manifest from an object store takes two requests, so a run leaves a pack for those who read the root later.
A copy in the pack is used only if the store still lists the manifest with the same time and size. Times of object
stores are whole seconds, so manifests written in the same second as the pack are read from their own files.

Records that many manifests share (configurations, hashes of files) are stored once, under a hash of their content. Such
a record counts as absent if its content no longer has the hash in its name.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from jobs.store.files import Files

FOLDER = "manifest"
PACK = f"{FOLDER}/_packed"  # Parquet of the schema _PACKED
FEW = 8  # so many manifests are read one by one, without a pack, from an object store
FEW_LOCAL = 1000  # and so many from a local root, where reading a file is cheap
CONFIGS, HASHES = "configs", "hashes"  # folders of shared records
_DIGITS = 16  # of the hash in the name of a shared record
_SECOND_NS = 10**9
_PACKED = pa.schema(
    [
        ("path", pa.string()),
        ("time_ns", pa.int64()),
        ("size", pa.int64()),
        ("content", pa.binary()),
    ]
)

#: A version of a file: its path, with its time of change in ns and its size.
Version = tuple[str, tuple[int, int]]


class Manifests:
    """The contents of a store's manifests, kept in memory; files that did not change are not read again."""

    def __init__(self, files: Files, few: int = FEW) -> None:
        """If more than `few` manifests are new, the pack is read, or written."""
        self._files, self._few = files, few
        self._known: dict[Version, bytes] = {}
        self._written: set[str] = set()  # paths written since the last listing: their `_known` content may be old
        self._packed: dict[Version, bytes] | None = None  # the pack as it was read or written; None: not read yet

    def contents(self) -> dict[str, bytes]:
        """The content of every manifest by its name.

        Every call lists the manifests and reads those that are new or have changed. If these are many, the pack is read
        first.
        """
        listed = list(self._files.stamps(FOLDER, ".json").items())
        if self._packed is None and len(self._new(listed)) > self._few:
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
        """Note that the manifest at `path` is about to be written, so that it is read again."""
        if path.startswith(FOLDER):
            self._written.add(path)

    def pack(self) -> None:
        """Write the pack anew if many manifests are not in it. Only the run that owns the root may."""
        self.contents()
        if len(self._known.keys() - (self._packed or {}).keys()) > self._few:
            self._files.write_bytes(PACK, packed(self._known))
            self._packed = dict(self._known)

    def _new(self, listed: list[Version]) -> list[Version]:
        """The listed versions whose content is not known, or may have changed."""
        return [version for version in listed if version not in self._known or version[0] in self._written]

    def _read_pack(self) -> dict[Version, bytes]:
        """The manifests in the pack, but those written in the pack's own second; {} if it is missing or broken."""
        (data,) = self._files.read_all([PACK])
        written_s = self._files.modified_s(PACK)
        if data is None or written_s is None:
            return {}
        with suppress(OSError, pa.ArrowException, KeyError):  # the pack is broken, or an older version wrote it
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
    """The bytes of a pack of these manifests: a Parquet file of schema _PACKED."""
    rows = [(path, time_ns, size, content) for (path, (time_ns, size)), content in manifests.items()]
    columns = [list(column) for column in zip(*rows, strict=True)] or [[]] * len(_PACKED)
    table = pa.table([pa.array(column, kind.type) for column, kind in zip(columns, _PACKED, strict=True)], _PACKED)
    buffer = io.BytesIO()
    pq.write_table(table, buffer, compression="zstd", use_dictionary=False, write_page_checksum=True)
    return buffer.getvalue()


def manifest(name: str) -> str:
    """The path of the manifest of this name."""
    return f"{FOLDER}/{name}.json"


def put_shared(files: Files, folder: str, record: Any) -> str:
    """Store a shared record. Returns the name under which `shared` finds it."""
    text = json.dumps(record, indent=1, sort_keys=True, ensure_ascii=False).encode()
    name = _name_of(text)
    files.write_bytes(shared_path(folder, name), text)
    return name


def shared(files: Files, folder: str, name: str | None) -> Any:
    """The shared record of this name; None if it is missing or its content was changed."""
    if name is None:
        return None
    (text,) = files.read_all([shared_path(folder, name)])
    return None if text is None or _name_of(text) != name else json.loads(text)


def shared_path(folder: str, name: str) -> str:
    """The path of the shared record of this name."""
    return f"{folder}/{name}.json"


def _name_of(text: bytes) -> str:
    """The name of a shared record with this content: the first digits of its sha256."""
    return hashlib.sha256(text).hexdigest()[:_DIGITS]
