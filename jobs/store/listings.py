"""Files that manifests list, with their bytes, and those that are there: folders are listed, no file is asked for."""

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
            folders: dict[str, dict[str, int]] = defaultdict(dict)
            for path, (_, size) in self._files.stamps(root, recursive=True).items():
                parent, _, name = path.rpartition("/")
                folders[parent][name] = size
            self._known[root] = folders
        return self._known[root].get(folder, {})

    def anew(self, folder: str) -> dict[str, int]:
        """The same of a folder as it is now."""
        sizes = {path.removeprefix(f"{folder}/"): size for path, (_, size) in self._files.stamps(folder).items()}
        if _root(folder) in self._known:
            self._known[_root(folder)][folder] = sizes
        return dict(sizes)

    def forget(self, path: str) -> None:
        """Forgets a file that is removed."""
        folder, _, name = path.rpartition("/")
        self._known.get(_root(folder), {}).get(folder, {}).pop(name, None)


def _root(folder: str) -> str:
    """What is listed at once: a product's folder of one model, as `relevance/model=gpt2`."""
    return "/".join(folder.split("/")[:2])


def shards_in(artifact: Artifact, record: Mapping[str, Any]) -> list[str]:
    """File names that a manifest in this place lists."""
    if artifact.layout.shard is not None and not artifact.is_keyed():
        return [artifact.shard()]  # the only one
    return list(record.get("shards", ()))


def paths_in(artifact: Artifact, record: Mapping[str, Any]) -> list[str]:
    """Paths of what a manifest in this place lists."""
    paths = [f"{folder}/{shard}" for folder in artifact.folders for shard in shards_in(artifact, record)]
    return [*paths, record["file"]] if "file" in record else paths  # of measurements, where older versions wrote it


def bytes_in(artifact: Artifact, record: Mapping[str, Any]) -> Sequence[Mapping[str, int | None]]:
    """By folder of the artifact, the files that a manifest lists with their bytes; None where it does not say."""
    if not record:
        return [{}] * len(artifact.folders)
    return record.get("bytes") or [dict.fromkeys(shards_in(artifact, record))] * len(artifact.folders)


def bytes_there(
    artifact: Artifact, record: Mapping[str, Any], there: Sequence[Mapping[str, int]]
) -> list[dict[str, int | None]]:
    """What a manifest says of the bytes of its files: in the first folder of all, in others of those that are there."""
    names = shards_in(artifact, record)
    first, *others = there
    sizes: list[dict[str, int | None]] = [{name: first.get(name) for name in names}]
    for own in others:
        sizes.append({name: own[name] for name in names if name in own})
    return sizes
