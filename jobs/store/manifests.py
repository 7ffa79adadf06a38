"""Manifests, all at once, and the files that they list, by listings of folders: no file is asked for.

An object store takes two requests for each manifest, so a run leaves them packed into one file too.

The pack is a copy for readers: a manifest counts as packed only where the store still lists it with its old stamp.
Times of object stores are whole seconds, so a manifest of the second in which the pack was written is read anew.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from jobs.store.artifacts import Artifact
from jobs.store.files import Files

FOLDER = "manifest"
PACK = f"{FOLDER}/_packed"  # gzipped JSON; pyarrow would gzip a file so named once more
FEW = 20  # manifests that are read file by file rather than packed
_VERSION = 1
_SECOND_NS = 10**9

#: A version of a file: its path, with its time of change in ns and its size.
Version = tuple[str, tuple[int, int]]


class Manifests:
    """The manifests of one store, as they were when they were last listed."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._known: dict[Version, bytes] = {}
        self._written: set[str] = set()  # paths since then: a version may be of another content
        self._packed: dict[Version, bytes] | None = None  # None until it was looked for

    def contents(self, packed: bool) -> dict[str, bytes]:
        """The content of every manifest by its name. Listed every time; read are those that are new or have changed.

        `packed` says whether to look for the pack, which saves time only where a request takes some.
        """
        listed = list(self._files.stamps(FOLDER, ".json").items())
        if packed and self._packed is None and len(self._new(listed)) > FEW:
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

    def pack(self) -> None:
        """Write the pack anew where many manifests are not in it. Only the owner of the root may."""
        self.contents(packed=True)
        if len(self._known.keys() - (self._packed or {}).keys()) <= FEW:
            return
        entries = {}
        for (path, stamp), content in self._known.items():
            with suppress(UnicodeDecodeError):
                entries[path] = [*stamp, content.decode()]
        text = json.dumps({"version": _VERSION, "manifests": entries}, ensure_ascii=False)
        self._files.write_bytes(PACK, gzip.compress(text.encode(), compresslevel=3))
        self._packed = dict(self._known)

    def _new(self, listed: list[Version]) -> list[Version]:
        return [version for version in listed if version not in self._known or version[0] in self._written]

    def _read_pack(self) -> dict[Version, bytes]:
        """The packed manifests that cannot have changed unseen; none where there is no pack or a broken one."""
        (data,) = self._files.read_all([PACK])
        written_s = self._files.modified_s(PACK)
        if data is None or written_s is None:
            return {}
        try:
            pack = json.loads(gzip.decompress(data))
        except (EOFError, OSError, ValueError, zlib.error):
            return {}
        if not isinstance(pack, dict) or pack.get("version") != _VERSION:
            return {}
        known = {}
        for path, (time_ns, size, text) in pack["manifests"].items():
            if time_ns < int(written_s) * _SECOND_NS:
                known[path, (time_ns, size)] = text.encode()
        return known


class Listings:
    """The bytes of the files of a store, as they were when their folders were last listed."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._known: dict[str, dict[str, dict[str, int]]] = {}  # by root (see `_root`), folder and name

    def sizes(self, folder: str) -> Mapping[str, int]:
        """The bytes of the files of a folder by name, listed once with the other folders of its root."""
        root = _root(folder)
        if root not in self._known:
            self._known[root] = self._listed(root, recursive=True)
        return self._known[root].get(folder, {})

    def anew(self, folder: str) -> dict[str, int]:
        """The same of a folder as it is now."""
        sizes = self._listed(folder).get(folder, {})
        if _root(folder) in self._known:
            self._known[_root(folder)][folder] = sizes
        return dict(sizes)

    def forget(self, path: str) -> None:
        """Forgets a file that is removed."""
        folder, _, name = path.rpartition("/")
        self._known.get(_root(folder), {}).get(folder, {}).pop(name, None)

    def _listed(self, root: str, recursive: bool = False) -> dict[str, dict[str, int]]:
        """The bytes of files by folder and name."""
        folders: dict[str, dict[str, int]] = defaultdict(dict)
        for path, (_, size) in self._files.stamps(root, recursive=recursive).items():
            folder, _, name = path.rpartition("/")
            folders[folder][name] = size
        return folders


def _root(folder: str) -> str:
    """The folder that is listed at once: a product's of one model, as `relevance/model=gpt2`."""
    return "/".join(folder.split("/")[:2])


def shards_in(artifact: Artifact, record: Mapping[str, Any]) -> list[str]:
    """File names that a manifest of this artifact's columns lists."""
    if artifact.layout.shard is not None and not artifact.is_keyed():
        return [artifact.shard()]  # the only one
    return list(record.get("shards", ()))


def paths_in(artifact: Artifact, record: Mapping[str, Any]) -> list[str]:
    """Paths of the files that such a manifest lists."""
    names = shards_in(artifact, record)
    paths = [f"{folder}/{name}" for folder in artifact.folders for name in names]
    return [*paths, record["file"]] if "file" in record else paths  # of measurements, where older versions wrote it


def bytes_in(artifact: Artifact, record: Mapping[str, Any]) -> Sequence[Mapping[str, int | None]]:
    """By folder of the artifact, the files that a manifest lists with their bytes; None where it does not say."""
    names = shards_in(artifact, record) if record else ()
    return record.get("bytes") or [dict.fromkeys(names)] * len(artifact.folders)


def bytes_there(
    artifact: Artifact, record: Mapping[str, Any], sizes: Sequence[Mapping[str, int]]
) -> list[dict[str, int | None]]:
    """The bytes that a manifest records, by folder: all its files in the first folder, existing ones in the others.

    `sizes` are the bytes of the existing files of each folder.
    """
    names = shards_in(artifact, record)
    recorded: list[dict[str, int | None]] = [{name: sizes[0].get(name) for name in names}]
    for existing in sizes[1:]:
        recorded.append({name: existing[name] for name in names if name in existing})
    return recorded
