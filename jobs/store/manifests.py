"""Reads and writes manifests, and the records that they share.

Records that many manifests share (configurations, hashes of files) are stored once, under a hash of their content. Such
a record counts as absent if its content no longer has the hash in its name.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

from closelook.jobs.store.files import Files

FOLDER = "manifest"
CONFIGS, HASHES = "configs", "hashes"  # folders of shared records
_DIGITS = 16  # of the hash in the name of a shared record
#: A version of a file: its path, with its time of change in ns and its size.
Version = tuple[str, tuple[int, int]]


class Manifests:
    """The contents of a store's manifests, kept in memory; files that did not change are not read again."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._known: dict[Version, bytes] = {}
        self._written: set[str] = set()  # paths written since the last listing: their `_known` content may be old

    def contents(self) -> dict[str, bytes]:
        """The content of every manifest by its name.

        Every call lists the manifests and reads those that are new or have changed.
        """
        listed = list(self._files.stamps(FOLDER, ".json").items())
        new = [version for version in listed if version not in self._known or version[0] in self._written]
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
