"""Files that manifests list, with their bytes, and those that exist: folders are listed, no file is asked for."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from jobs.store.artifacts import Artifact
from jobs.store.files import Files


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
