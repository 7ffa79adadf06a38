"""The ledger: which artifacts of a store are done, by their manifests, which are written and removed through it alone.

Only the driver of a run writes manifests; workers write shards. So a ledger lists manifests once, and from then on
keeps what it read and what it wrote itself.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

from closelook.jobs.store.artifacts import Artifact, artifact_in, is_complete, short
from closelook.jobs.store.files import Written, written
from closelook.jobs.store.listings import by_folder, entries_of, note_of, paths_in, sizes_in
from closelook.jobs.store.manifests import CONFIGS, HASHES, manifest, put_shared
from closelook.jobs.store.shards import Store
from closelook.jobs.store.states import NO_HASHES, States
from closelook.jobs.versions import versions

#: Entries of a manifest about its files, which are dropped when the files are to be made again.
_OF_FILES = ("shards", "bytes", "file_rows", "hashes")


class Ledger(States):
    """The artifacts of one store: queries (of `States`), and the commits and removals of artifacts."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        #: By thread, in `commits`: manifests that are not written yet, until the end of a block of `together`.
        self._waiting = threading.local()
        self._named: tuple[Mapping[str, Any], str] | None = None  # the last configuration, and its name in the store

    @contextmanager
    def together(self) -> Iterator[None]:
        """Inside the block, `commit` only collects this thread's manifests.

        The end of the block, also by an error, writes them all, with one file of hashes for all of them.
        """
        self._waiting.commits = []
        try:
            yield
        finally:
            commits, self._waiting.commits = self._waiting.commits, None
            self._write(commits)

    def commit(
        self,
        artifact: Artifact,
        record: Mapping[str, Any],
        *,
        config: Mapping[str, Any],
        complete: bool = True,
        files: Mapping[str, Written] | None = None,
        made_of: Collection[Artifact] = (),
    ) -> None:
        """Write the manifest of `artifact`, and then remove what the artifact replaces.

        A manifest holds the entries of `record` (`shards` lists its shards, if any), the artifact's state, key and
        place, the artifacts it was `made_of`, the bytes, rows and hashes of its files, the time, the versions of
        packages and the name of the stored `config`. `files` holds size, rows and hash of each file by path, as their
        writers reported them; None: the files are read.
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
            "config": self._config(config),
            "versions": versions(),
            "written": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        }
        if not complete and "hashes_before" in before:
            common["hashes_before"] = before["hashes_before"]
        commit = _Commit(artifact, {**common, **record}, before, files)
        self._know(artifact.name, commit.record)
        self.saw(commit.listed)
        for path in commit.listed:
            self._clear_note(path)
        waiting: list[_Commit] | None = getattr(self._waiting, "commits", None)
        if waiting is None:
            self._write([commit])
        else:
            waiting.append(commit)

    def _there(self, artifact: Artifact, record: Mapping[str, Any]) -> dict[str, Written]:
        """Size and hash, by path, of those files of the artifact that exist. Reads every file."""
        paths = paths_in(artifact, record)
        contents = zip(paths, self.store.read_all(paths), strict=True)
        return {path: written(content) for path, content in contents if content is not None}

    def _config(self, config: Mapping[str, Any]) -> str:
        """The name under which the configuration is stored; the first call for a configuration writes it."""
        known = self._named
        if known is None or known[0] is not config:
            text = json.dumps(config, sort_keys=True)
            name = self.store.kept("config", text, lambda: put_shared(self.store, CONFIGS, config))
            known = self._named = config, name
        return known[1]

    def _write(self, commits: Sequence[_Commit]) -> None:
        """Write one file of hashes, then the manifests that name it, then remove what the artifacts replace."""
        hashes = {path: file.sha256 for commit in commits for path, file in commit.listed.items()}
        if commits:
            self.store.adopt_format()
        name = put_shared(self.store, HASHES, by_folder(hashes)) if hashes else NO_HASHES
        for commit in commits:
            artifact, record = commit.artifact, commit.record
            record["hashes"] = name
            self.store.write_manifest(artifact.name, record)
            if is_complete(record):
                self._discard_changed(commit)
                if artifact.replaces:
                    self._remove_replaced(commit)

    def _remove_replaced(self, commit: _Commit) -> None:
        """Remove the files of the previous artifact in this place, and shards of other keys, but for current files."""
        artifact = commit.artifact
        before = set(self.belongings(artifact, commit.before))
        for folder in artifact.folders if artifact.is_keyed() else ():
            for name in self._names_in(folder):
                if artifact.key_in(name) not in (None, short(artifact.key)):
                    before.add(f"{folder}/{name}")
        for path in before.difference(paths_in(artifact, commit.record)):
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

        The manifest of a complete artifact is first rewritten as partial. It keeps the name of its hashes: artifacts
        made of this one stay valid if the new files turn out to have the same hashes. If a file's bytes had changed,
        artifacts made of this one are removed at once: they may have been made of the changed bytes.
        """
        faults, record = self.damage(artifact), self.record(artifact)
        if faults and is_complete(record):
            assert record is not None
            if any(path in self._notes() for path in faults):
                self._discard_made_of({artifact.name})
            kept = {name: value for name, value in record.items() if name not in _OF_FILES}
            damaged = {**kept, "state": "partial", "hashes_before": record.get("hashes")}
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

    def _discard_changed(self, commit: _Commit) -> None:
        """Remove what was made of an artifact that had been damaged, unless its new files have the old hashes."""
        before = self.hashes({"hashes": commit.before.get("hashes_before")}) or {}
        if any(before.get(path, file.sha256) != file.sha256 for path, file in commit.listed.items()):
            self._discard_made_of({commit.artifact.name})

    def _discard_made_of(self, names: Collection[str]) -> None:
        """Remove every artifact made, directly or in turn, of the artifacts whose manifests have these `names`."""
        gone = set(names)
        made = {name: record for name, record in self.records() if record.get("made_of")}
        while True:
            more = [name for name in made.keys() - gone if gone.intersection(made[name]["made_of"])]
            if not more:
                return
            for name in more:
                artifact = artifact_in(made[name])
                if artifact is not None:
                    self.discard(artifact)
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
        """Delete a file, and drop it from the listings, its note of damage included."""
        self.store.delete(path)
        self._states.clear()
        self._listings.put(path, None)
        self._clear_note(path)

    def _clear_note(self, path: str) -> None:
        """Remove the note that the file at `path` is damaged, if there is one."""
        if path in self._notes():
            self.store.delete(note_of(path))
            del self._notes()[path]


@dataclass(frozen=True)
class _Commit:
    """A manifest to be written, with the manifest that it replaces."""

    artifact: Artifact
    record: dict[str, Any]
    before: Mapping[str, Any]
    files: Mapping[str, Written]

    @property
    def listed(self) -> dict[str, Written]:
        """Size, rows and hash of the files that the manifest lists and that exist, by path."""
        return {path: self.files[path] for path in sizes_in(self.artifact, self.record) if path in self.files}
