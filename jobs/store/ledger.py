"""The ledger: which artifacts of a store are done, by their manifests and by listings of their files.

Only the driver of a run writes manifests; workers write shards. So a ledger reads manifests and lists files once, and
from then on keeps what it wrote itself, and what workers reported.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict
from typing import Any, Literal

import pyarrow as pa
from pydantic_core import from_json

from closelook.jobs.store.artifacts import Artifact, artifact_in, is_complete, key_in, short
from closelook.jobs.store.files import Damaged, Written, written
from closelook.jobs.store.shards import Columns, Store, manifest
from closelook.versions import versions

#: `damaged`: complete by its manifest, but a file that the manifest lists is gone or has another size.
State = Literal["done", "partial", "damaged", "missing"]
Record = dict[str, Any]  # a manifest


class Ledger:
    """The artifacts of one store: queries about them, and their commits and removals."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._read: dict[str, Record] | None = None  # by name; None until manifests are read
        self._folders: dict[str, dict[str, int]] = {}  # the bytes of files by name, by folder
        self._listed: set[str] = set()  # top folders, such as `relevance`, whose files are in `_folders`
        self._lock = threading.RLock()  # held while manifests are read or files listed

    # Manifests.

    @property
    def _records(self) -> dict[str, Record]:
        """Every manifest by name, without those that cannot be parsed: their artifacts count as missing."""
        with self._lock:
            if self._read is None:
                parsed = {name: _parsed(content) for name, content in self.store.manifests().items()}
                self._read = {name: record for name, record in parsed.items() if record is not None}
            return self._read

    def named(self, name: str) -> Record | None:
        """The manifest of this name; None if there is none."""
        return self._records.get(name)

    def records(self, product: str = "") -> Iterator[tuple[str, Record]]:
        """(name, manifest) of every manifest, or of those of one product, sorted by name."""
        for name in sorted(self._records):
            if not product or name.partition(".")[0] == product:
                yield name, self._records[name]

    def latest(self, artifact: Artifact) -> Record | None:
        """The manifest in the artifact's place; where artifacts replace each other, it may have another key."""
        return self.named(artifact.name)

    def record(self, artifact: Artifact) -> Record | None:
        """The manifest of the artifact under its own key; None if there is none."""
        record = self.latest(artifact)
        return record if record is not None and key_in(record) == artifact.key else None

    def entered(self, place: Artifact) -> Artifact | None:
        """The artifact whose manifest stands in this place, complete or not; None if there is none."""
        record = self.latest(place)
        return None if record is None else artifact_in(record)

    # States.

    def state(self, artifact: Artifact) -> State:
        """The state of an artifact. It is partial as soon as it has a manifest or a shard."""
        record = self.record(artifact)
        if record is not None and is_complete(record):
            return "damaged" if self.damage(artifact) else "done"
        return "partial" if record is not None or self.begun(artifact) else "missing"

    def is_done(self, artifact: Artifact) -> bool:
        """True if the artifact is complete and all of its files have the sizes that the manifest says."""
        return self.state(artifact) == "done"

    def damage(self, artifact: Artifact) -> str | None:
        """A line about a file of the manifest that is gone or has another size; None if there is none."""
        for path, listed in (self.record(artifact) or {}).get("files", {}).items():
            size = self._size(path)
            if size != listed["bytes"]:
                fault = "is gone" if size is None else f"has {size} bytes, but was written with {listed['bytes']}"
                return f"{artifact}: {self.store.url(path)} {fault}: {self.store.remedy}"
        return None

    # Files.

    def _files_in(self, folder: str) -> dict[str, int]:
        """The bytes of the files in a folder, by name. The first call lists all of its top folder."""
        top = folder.partition("/")[0]
        with self._lock:
            if top not in self._listed:
                self._records  # noqa: B018  manifests first: then the files that they name exist in the listing
                for path, (_, size) in self.store.stamps(top, "", recursive=True).items():
                    parent, _, name = path.rpartition("/")
                    self._folders.setdefault(parent, {})[name] = size
                self._listed.add(top)
            return self._folders.setdefault(folder, {})

    def _size(self, path: str) -> int | None:
        """The bytes of a file; None if it does not exist."""
        folder, _, name = path.rpartition("/")
        return self._files_in(folder).get(name)

    def saw(self, files: Mapping[str, Written]) -> None:
        """Add to the listings the `files` that were written since."""
        for path, file in files.items():
            folder, _, name = path.rpartition("/")
            self._files_in(folder)[name] = file.size

    def begun(self, artifact: Artifact) -> list[str]:
        """The paths of shards under the artifact's own key in its first folder."""
        names = filter(artifact.owns, sorted(self._files_in(artifact.folder))) if artifact.is_keyed() else ()
        return [f"{artifact.folder}/{name}" for name in names]

    def shards(self, artifact: Artifact) -> Iterator[tuple[str, str]]:
        """(path, shortened key) of every shard and file of rejects in the artifact's place, under any key."""
        for folder in artifact.folders if artifact.is_keyed() else ():
            for name in sorted(self._files_in(folder)):
                key = artifact.key_in(name)
                if key is not None:
                    yield f"{folder}/{name}", key
        if artifact.rejects is not None:
            folder = artifact.rejects.rpartition("/")[0]
            for name in sorted(self._files_in(folder)):
                yield f"{folder}/{name}", name.removesuffix(".parquet")

    def belongings(self, record: Record) -> list[str]:
        """The paths of those files that a manifest lists and that exist."""
        return [path for path in record.get("files", ()) if self._size(path) is not None]

    def files(self, artifact: Artifact) -> list[str]:
        """The paths of the shards that the artifact's manifest lists, in order; [] if it has no manifest."""
        record = self.record(artifact) or {}
        return [f"{artifact.folder}/{shard}" for shard in record.get("shards", ())]

    def files_at(self, place: Artifact) -> list[str]:
        """The shards of the artifact in this place, whatever its key; [] if there is none. Raises as `read`."""
        artifact = self.entered(place)
        return [] if artifact is None else self._whole(artifact)

    def read(self, artifact: Artifact, schema: pa.Schema, columns: Columns = None) -> pa.Table:
        """All rows of the artifact, shards in order. Raises Damaged unless it is done.

        There are no rows, and no shards, if no sample of the task could be tokenised.
        """
        files = self._whole(artifact)
        if not files:
            empty = schema.empty_table()
            return empty if columns is None else empty.select(columns)
        return self.store.read(files, schema, columns)

    def _whole(self, artifact: Artifact) -> list[str]:
        """The shards of an artifact that is done. Raises Damaged for any other."""
        if self.is_done(artifact):
            return self.files(artifact)
        unfinished = f"{artifact} is not complete: run `closelook run --root {self.store.root}`"
        raise Damaged(self.damage(artifact) or unfinished)

    # Commits and removals.

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
        place, the artifacts it was `made_of`, the bytes, rows and hash of each file, the time and the versions of
        packages. `files` holds the files by path, as their writers reported them; None: they are read.
        """
        before = self.latest(artifact) or {}
        paths = _paths(artifact, record)
        if files is None:
            contents = zip(paths, self.store.read_all(paths), strict=True)
            files = {path: written(content) for path, content in contents if content is not None}
        files = {path: files[path] for path in paths if path in files}
        entered = {
            "state": "complete" if complete else "partial",
            "key": artifact.key,
            "artifact": {name: value for name, value in asdict(artifact.place).items() if value},
            "files": {path: {"bytes": f.size, "rows": f.rows, "sha256": f.sha256} for path, f in files.items()},
            "made_of": [source.name for source in made_of],
            "versions": versions(),
            "written": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            **record,
        }
        self.store.write_manifest(artifact.name, entered)
        self._records[artifact.name] = entered
        self.saw(files)
        if complete and artifact.replaces:
            old = {path for path, key in self.shards(artifact) if key != short(artifact.key)}
            for path in old.union(before.get("files", ())).difference(files):
                self.remove(path)

    def forget(self, artifact: Artifact) -> None:
        """Remove the manifest in the artifact's place, before other numbers are written there."""
        if self.latest(artifact) is not None:
            self.store.delete(manifest(artifact.name))
            del self._records[artifact.name]

    def remove(self, path: str) -> None:
        """Remove a file, if it exists."""
        if self._size(path) is not None:
            self.store.delete(path)
            folder, _, name = path.rpartition("/")
            self._files_in(folder).pop(name, None)


def _parsed(content: bytes) -> Record | None:
    """The manifest in `content`; None if it is none, or of a version before manifests listed files."""
    try:
        record = from_json(content)  # takes half of the time of json.loads
    except ValueError:
        return None
    return record if isinstance(record, dict) and "files" in record else None


def _paths(artifact: Artifact, record: Mapping[str, Any]) -> list[str]:
    """The paths that a manifest may list: its shards in every folder of the artifact, and its file of rejects."""
    has_one_name = artifact.layout.shard is not None and not artifact.is_keyed()  # as of scores
    names = [artifact.shard()] if has_one_name else record.get("shards", ())
    paths = [f"{folder}/{name}" for folder in artifact.folders for name in names]
    return [*paths, artifact.rejects] if artifact.rejects is not None else paths
