"""Reads manifests, and keeps those that did not change."""

from __future__ import annotations

from closelook.jobs.store.files import Files

FOLDER = "manifest"
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
