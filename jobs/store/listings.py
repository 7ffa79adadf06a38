"""The files that manifests list, and those that exist. Folders are listed, which is cheaper than asking by file."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from typing import Any

from closelook.jobs.store.artifacts import Artifact
from closelook.jobs.store.files import Files, Written

Sizes = dict[str, int | None]  # bytes, or rows, of files by name or path


class Listings:
    """The sizes of a store's files, from listings that are made once and then updated by what this process changes."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._known: dict[str, dict[str, int]] = {}  # size by top folder (see `_root`) and path
        self._listing = threading.Lock()  # held while a top folder is listed
        self._folders: dict[str, dict[str, list[str]]] = {}  # file names by top folder and folder, from `_known`

    def size(self, path: str) -> int | None:
        """The bytes of a file; None if it does not exist. The first call lists all of its top folder."""
        return self._of(_root(path)).get(path)

    def ahead(self, folders: Iterable[str]) -> None:
        """List the top folders of these folders now, so that later queries need not."""
        for folder in folders:
            self._of(_root(folder))

    def names(self, folder: str) -> list[str]:
        """The names of the files in a folder, by the same listing as `size`."""
        root = _root(folder)
        if root not in self._folders:
            folders: dict[str, list[str]] = {}
            for path in list(self._of(root)):  # a copy: other threads add files meanwhile
                parent, _, name = path.rpartition("/")
                folders.setdefault(parent, []).append(name)
            self._folders[root] = folders
        return self._folders[root].get(folder, [])

    def anew(self, folder: str) -> list[str]:
        """The names of the files in a folder, from a new listing of it."""
        listed, root = self._listed(folder), _root(folder)
        if root in self._known:
            for name in self.names(folder):
                self._known[root].pop(f"{folder}/{name}", None)
            self._known[root] |= listed
            self._folders.pop(root, None)
        return [path.rpartition("/")[2] for path in listed]

    def put(self, path: str, size: int | None) -> None:
        """Set the size of a file that was written since its top folder was listed, or (None) remove a deleted file."""
        known = self._known.get(_root(path))
        if known is not None:
            known.pop(path, None)
            if size is not None:
                known[path] = size
            self._folders.pop(_root(path), None)

    def _of(self, root: str) -> dict[str, int]:
        """Size by path of all files in a top folder, which the first call lists."""
        with self._listing:
            if root not in self._known:
                self._known[root] = self._listed(root, recursive=True)
        return self._known[root]

    def _listed(self, folder: str, recursive: bool = False) -> dict[str, int]:
        """Size by path of the files in a folder, as the store lists them now."""
        return {path: size for path, (_, size) in self._files.stamps(folder, "", recursive).items()}


def _root(folder: str) -> str:
    """The first folder of a path, such as `relevance`: it holds a product of all models and is listed as a whole."""
    return folder.partition("/")[0]


def shards_in(artifact: Artifact, record: Mapping[str, Any]) -> list[str]:
    """The file names of the artifact's shards: those in its manifest `record`, or the one name that has no key."""
    if artifact.layout.shard is not None and not artifact.is_keyed():
        return [artifact.shard()]  # as for scores: a new artifact in this place overwrites the file
    return list(record.get("shards", ()))


def paths_in(artifact: Artifact, record: Mapping[str, Any]) -> list[str]:
    """The paths of the shards of `shards_in` in every folder of the artifact, and of its file of rejects, if any."""
    names = shards_in(artifact, record)
    paths = [f"{folder}/{name}" for folder in artifact.folders for name in names]
    return [*paths, artifact.rejects] if artifact.rejects is not None else paths


def sizes_in(artifact: Artifact, record: Mapping[str, Any]) -> Sizes:
    """The bytes of every file that the manifest `record` lists, by path; None for a shard that was not there."""
    folders = zip(_folders(artifact), record.get("bytes", ()), strict=False)
    return {f"{folder}/{name}": size for folder, sizes in folders for name, size in sizes.items()}


def hashes_in(artifact: Artifact, record: Mapping[str, Any]) -> dict[str, str]:
    """The sha256 of every file that the manifest `record` lists and that existed when it was written, by path."""
    folders = zip(_folders(artifact), record["hashes"], strict=True)
    return {f"{folder}/{name}": sha256 for folder, hashes in folders for name, sha256 in hashes.items()}


def entries_of(artifact: Artifact, record: Mapping[str, Any], files: Mapping[str, Written]) -> dict[str, Any]:
    """The entries `bytes`, `file_rows` and `hashes` of a manifest: for each folder, those of its files by name.

    The first folder has an entry for every shard of the artifact (None if it is not in `files`), the others only for
    those in `files`. Files that are not Parquet have no rows.
    """
    names, rejects = shards_in(artifact, record), artifact.rejects
    sizes: list[Sizes] = []
    rows: list[Sizes] = []
    hashes: list[dict[str, str]] = []
    for at, folder in enumerate(_folders(artifact)):
        of_folder = [rejects.rpartition("/")[2]] if rejects and at == len(artifact.folders) else names
        present = {name: files[f"{folder}/{name}"] for name in of_folder if f"{folder}/{name}" in files}
        listed = of_folder if at == 0 else present
        sizes.append({name: present[name].size if name in present else None for name in listed})
        rows.append({name: file.rows for name, file in present.items() if file.rows is not None})
        hashes.append({name: file.sha256 for name, file in present.items()})
    return {"bytes": sizes, "file_rows": rows, "hashes": hashes}


def _folders(artifact: Artifact) -> list[str]:
    """The artifact's folders, then the folder of its rejects, if any."""
    rejects = artifact.rejects
    return [*artifact.folders, rejects.rpartition("/")[0]] if rejects is not None else list(artifact.folders)
