"""The files that manifests list, and those that are there, by listings of folders: no file is asked for."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from jobs.store.artifacts import Artifact
from jobs.store.files import Files, Written


class Listings:
    """The bytes of the files of a store, as they were when their folders were last listed, or written to since."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._known: dict[str, dict[str, int]] = {}  # by root (see `_root`) and path
        self._listing = threading.Lock()  # held while a root is listed
        self._folders: dict[str, dict[str, list[str]]] = {}  # names by root and folder, made where they are asked for

    def size(self, path: str) -> int | None:
        """The bytes of a file, whose folder is listed once with all of its root; None where there is none."""
        return self._of(_root(path)).get(path)

    def ahead(self, folders: Iterable[str]) -> None:
        """List the roots of these folders before they are asked for."""
        for folder in folders:
            self._of(_root(folder))

    def names(self, folder: str) -> list[str]:
        """The names of the files of a folder, listed as for `size`."""
        root = _root(folder)
        if root not in self._folders:
            folders: dict[str, list[str]] = {}
            for path in list(self._of(root)):  # threads that close other works add to it
                place, _, name = path.rpartition("/")
                folders.setdefault(place, []).append(name)
            self._folders[root] = folders
        return self._folders[root].get(folder, [])

    def anew(self, folder: str) -> list[str]:
        """The same of a folder as it is now."""
        listed, root = self._listed(folder), _root(folder)
        if root in self._known:
            for name in self.names(folder):
                self._known[root].pop(f"{folder}/{name}", None)
            self._known[root] |= listed
            self._folders.pop(root, None)
        return [path.rpartition("/")[2] for path in listed]

    def add(self, path: str, size: int) -> None:
        """Know of a file that was written since."""
        self._change(path, size)

    def forget(self, path: str) -> None:
        """Forgets a file that is removed."""
        self._change(path, None)

    def _change(self, path: str, size: int | None) -> None:
        known = self._known.get(_root(path))
        if known is not None:
            known.pop(path, None)
            if size is not None:
                known[path] = size
            self._folders.pop(_root(path), None)

    def _of(self, root: str) -> dict[str, int]:
        with self._listing:
            if root not in self._known:
                self._known[root] = self._listed(root, recursive=True)
        return self._known[root]

    def _listed(self, folder: str, recursive: bool = False) -> dict[str, int]:
        return {path: size for path, (_, size) in self._files.stamps(folder, "", recursive).items()}


def _root(folder: str) -> str:
    """The folder that is listed at once: a product's, of all models, as `relevance`."""
    return folder.partition("/")[0]


def shards_in(artifact: Artifact, record: Mapping[str, Any]) -> list[str]:
    """File names that a manifest of this artifact's columns lists."""
    if artifact.layout.shard is not None and not artifact.is_keyed():
        return [artifact.shard()]  # the only one
    return list(record.get("shards", ()))


def paths_in(artifact: Artifact, record: Mapping[str, Any]) -> list[str]:
    """Paths of the files that such a manifest lists, and of files beside them that may be there."""
    names = shards_in(artifact, record)
    paths = [f"{folder}/{name}" for folder in artifact.folders for name in names]
    paths += [record["file"]] if "file" in record else []  # of measurements, where older versions wrote it
    return [*paths, artifact.rejects] if artifact.rejects is not None else paths


def sizes_in(artifact: Artifact, record: Mapping[str, Any]) -> dict[str, int | None]:
    """The bytes of every file that a manifest lists, by path; None where it does not say."""
    names = shards_in(artifact, record) if record else ()
    recorded = record.get("bytes") or [dict.fromkeys(names)] * len(artifact.folders)
    folders = _folders(artifact)
    return {
        f"{folder}/{name}": size
        for folder, sizes in zip(folders, recorded, strict=False)
        for name, size in sizes.items()
    }


def entries_of(
    artifact: Artifact, record: Mapping[str, Any], files: Mapping[str, Written]
) -> dict[str, list[dict[str, int | None]]]:
    """The entries of a manifest about its files: their `bytes`, and the `file_rows` of Parquet, folder by folder.

    Listed are all its shards in the first folder, those of `files` in the others.
    """
    names, rejects = shards_in(artifact, record), artifact.rejects
    sizes: list[dict[str, int | None]] = []
    rows: list[dict[str, int | None]] = []
    for at, folder in enumerate(_folders(artifact)):
        of_folder = [rejects.rpartition("/")[2]] if rejects and at == len(artifact.folders) else names
        there = {name: files[f"{folder}/{name}"] for name in of_folder if f"{folder}/{name}" in files}
        listed = of_folder if at == 0 else there
        sizes.append({name: there[name].size if name in there else None for name in listed})
        rows.append({name: file.rows for name, file in there.items() if file.rows is not None})
    return {"bytes": sizes, "file_rows": rows}


def by_folder(hashes: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """Hashes by path as a side file holds them: by folder and name."""
    folders: dict[str, dict[str, str]] = defaultdict(dict)
    for path, sha256 in hashes.items():
        folder, _, name = path.rpartition("/")
        folders[folder][name] = sha256
    return folders


def by_path(folders: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    """The reverse of `by_folder`."""
    return {f"{folder}/{name}": sha256 for folder, names in folders.items() for name, sha256 in names.items()}


def _folders(artifact: Artifact) -> list[str]:
    """The artifact's folders, and that of its rejects."""
    rejects = artifact.rejects
    return [*artifact.folders, rejects.rpartition("/")[0]] if rejects is not None else list(artifact.folders)
