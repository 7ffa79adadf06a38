"""The ledger: which artifacts of a store are done, by their manifests, which are written and removed through it alone.

Only the driver of a run writes manifests; workers write shards. So a ledger lists manifests once, and from then on
keeps what it read and what it wrote itself.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from dataclasses import asdict
from typing import Any

from closelook.jobs.store.artifacts import Artifact, artifact_in, is_complete, short
from closelook.jobs.store.files import Written, written
from closelook.jobs.store.listings import entries_of, paths_in, sizes_in
from closelook.jobs.store.manifests import manifest
from closelook.jobs.store.shards import Store
from closelook.jobs.store.states import States
from closelook.versions import versions

#: Entries of a manifest about its files, which are dropped when the files are to be made again.
_OF_FILES = ("shards", "bytes", "file_rows", "hashes")


class Ledger(States):
    """The artifacts of one store: queries (of `States`), and the commits and removals of artifacts."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)

    def commit(
        self,
        artifact: Artifact,
        record: Mapping[str, Any],
        *,
        complete: bool = True,
        files: Mapping[str, Written] | None = None,
        made_of: Collection[Artifact] = (),
    ) -> None:
        """Write the manifest of `artifact`, and then remove what the artifact replaces.

        A manifest holds the entries of `record` (`shards` lists its shards, if any), the artifact's state, key and
        place, the artifacts it was `made_of`, the bytes, rows and hashes of its files, the time and the versions of
        packages. `files` holds size, rows and hash of each file by path, as their writers reported them; None: the
        files are read.
        """
        before = self.latest(artifact) or {}
        files = self._there(artifact, record) if files is None else files
        fields = {name: value for name, value in asdict(artifact.place).items() if value}
        state = "complete" if complete else "partial"
        common = {
            "state": state,
            "key": artifact.key,
            "artifact": fields,
            **entries_of(artifact, record, files),
            "made_of": [source.name for source in made_of],
            "versions": versions(),
            "written": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        }
        entered = {**common, **record}
        self.store.adopt_format()
        self.store.write_manifest(artifact.name, entered)
        self._know(artifact.name, entered)
        self.saw({path: files[path] for path in sizes_in(artifact, entered) if path in files})
        if complete and artifact.replaces:
            self._remove_replaced(artifact, before, entered)

    def _there(self, artifact: Artifact, record: Mapping[str, Any]) -> dict[str, Written]:
        """Size and hash, by path, of those files of the artifact that exist. Reads every file."""
        paths = paths_in(artifact, record)
        contents = zip(paths, self.store.read_all(paths), strict=True)
        return {path: written(content) for path, content in contents if content is not None}

    def _remove_replaced(self, artifact: Artifact, previous: Mapping[str, Any], current: Mapping[str, Any]) -> None:
        """Remove the files of the previous manifest in this place, and shards of other keys, but for current files."""
        before = set(self.belongings(artifact, previous))
        for folder in artifact.folders if artifact.is_keyed() else ():
            for name in self._names_in(folder):
                if artifact.key_in(name) not in (None, short(artifact.key)):
                    before.add(f"{folder}/{name}")
        for path in before.difference(paths_in(artifact, current)):
            self._delete(path)

    def forget(self, artifact: Artifact) -> None:
        """Remove what is stored in the artifact's place, the manifest first.

        Shards under the artifact's own key stay: a run completes them.
        """
        before = self.latest(artifact)
        if before is not None:
            self.store.delete(manifest(artifact.name))
            self._know(artifact.name, None)
        listed = [] if before is None or artifact.is_keyed() else self.belongings(artifact, before)
        for path in (*listed, *(path for path, _ in self.others(artifact))):
            self._delete(path)

    def discard_damaged(self, artifact: Artifact) -> None:
        """Remove damaged shards, with the files of the same names in the artifact's other folders: a run remakes them.

        The manifest of a complete artifact is first rewritten as partial, and artifacts made of this one are removed:
        they may have been made of a damaged file, and a file that is made again may come out otherwise.
        """
        faults, record = self.damage(artifact), self.record(artifact)
        if faults and is_complete(record):
            assert record is not None
            self._discard_made_of({artifact.name})
            kept = {name: value for name, value in record.items() if name not in _OF_FILES}
            damaged = {**kept, "state": "partial"}
            self.store.write_manifest(artifact.name, damaged)
            self._know(artifact.name, damaged)
        for name in dict.fromkeys(path.rpartition("/")[2] for path in faults):
            for folder in artifact.folders:
                self._delete(f"{folder}/{name}")

    def discard(self, artifact: Artifact) -> None:
        """Remove a committed artifact, the manifest first, so that no manifest ever lists files that are gone."""
        record = self.latest(artifact) or {}
        self.store.delete(manifest(artifact.name))
        self._know(artifact.name, None)
        for path in self.belongings(artifact, record):
            self._delete(path)

    def _discard_made_of(self, names: Collection[str]) -> None:
        """Remove every artifact made, directly or in turn, of the artifacts whose manifests have these `names`."""
        gone = set(names)
        made = {name: record for name, record in self.records() if record.get("made_of")}
        while True:
            more = [name for name in made.keys() - gone if gone.intersection(made[name]["made_of"])]
            if not more:
                return
            for name in more:
                self.discard(artifact_in(made[name]))
            gone.update(more)

    def _know(self, name: str, record: dict[str, Any] | None) -> None:
        """Keep in memory that the manifest `name` was written with this record, or (None) removed."""
        self._records[name] = record
        self._unreadable.pop(name, None)
        self._states.clear()

    def remove(self, path: str) -> None:
        """Remove a file if it exists, by the listing of its folder that this process keeps."""
        if self._listings.size(path) is not None:
            self._delete(path)

    def _delete(self, path: str) -> None:
        """Delete a file, and drop it from the listings."""
        self.store.delete(path)
        self._states.clear()
        self._listings.put(path, None)
