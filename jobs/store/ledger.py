"""The ledger: which artifacts are done, by their manifests. Whoever asks what there is, or enters something, asks here.

Only the driver of a run writes manifests; workers write shards. So a ledger lists them once and keeps what it read;
what it enters itself it knows.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any, Literal

import pyarrow as pa

from jobs.store.artifacts import Artifact, short
from jobs.store.files import StoreError
from jobs.store.shards import Store
from jobs.versions import versions

State = Literal["done", "partial", "missing"]
_FOLDER = "manifest"


class Ledger:
    """What one store holds. No query changes it."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._records: dict[str, dict[str, Any] | None] = {}  # that were asked for or entered
        self._contents: dict[str, bytes] | None = None  # of all manifests, listed when the first is asked for

    # What there is.

    def named(self, name: str) -> dict[str, Any] | None:
        """The manifest of this name."""
        if name not in self._records:
            content = self._listed().get(name)
            self._records[name] = None if content is None else json.loads(content)
        return self._records[name]

    def _listed(self) -> dict[str, bytes]:
        if self._contents is None:
            self._contents = self.store.manifests()
        return self._contents

    def latest(self, artifact: Artifact) -> dict[str, Any] | None:
        """The manifest in the artifact's place: of this very key, or, where artifacts replace each other, of any."""
        return self.named(artifact.name)

    def record(self, artifact: Artifact) -> dict[str, Any] | None:
        """The manifest of this very key."""
        record = self.latest(artifact)
        if record is None or not artifact.replaces:  # the name of its manifest tells its key
            return record
        return record if key_in(record) == artifact.key else None

    def state(self, artifact: Artifact) -> State:
        """Done by its manifest; partial as soon as there is a manifest or a shard of its key."""
        record = self.record(artifact)
        if record is not None and record.get("state", "complete") == "complete":
            listed = artifact.layout.shard is not None or all(map(self.store.exists, self.files(artifact)))
            return "done" if listed else "missing"
        return "partial" if record is not None or self.shards(artifact) else "missing"

    def is_done(self, artifact: Artifact) -> bool:
        return self.state(artifact) == "done"

    def shards(self, artifact: Artifact, folder: str | None = None) -> list[str]:
        """File names of the committed shards of this very key, whether a manifest lists them or not.

        `folder` is one of the artifact's; None is the first.
        """
        names = self._names(folder or artifact.folder) if artifact.is_keyed() else []
        return [name for name in names if artifact.owns(name)]

    def files(self, artifact: Artifact) -> list[str]:
        """Paths of the shards that its manifest lists, in order."""
        record = self.record(artifact) or {}
        return [f"{artifact.folder}/{shard}" for shard in record.get("shards", ())]

    def belongings(self, artifact: Artifact, record: Mapping[str, Any]) -> list[str]:
        """Paths that are there of what `record`, a manifest in this place, lists."""
        shards = record.get("shards", ())
        if artifact.layout.shard is not None and not artifact.is_keyed():
            shards = [artifact.shard()]  # the only one
        paths = [f"{folder}/{shard}" for folder in artifact.folders for shard in shards]
        paths += [record["file"]] if "file" in record else []  # of measurements, where older versions wrote it
        return [path for path in paths if self.store.exists(path)]

    def read(self, artifact: Artifact, schema: pa.Schema, columns: list[str] | None = None) -> pa.Table:
        """All rows, shards in order; none where no sample fits the tokenizer. Raises StoreError if it is not done."""
        if not self.is_done(artifact):
            raise StoreError(f"{artifact} is not complete under {self.store.root}; run `closelook attribute`")
        files = self.files(artifact)
        if not files:
            empty = schema.empty_table()
            return empty if columns is None else empty.select(columns)
        return self.store.read(files, schema, columns)

    def records(self, product: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
        """(name, manifest) of everything that was entered, or of one product."""
        for name in sorted({*self._listed(), *self._records}):
            if product and name.split(".")[0] != product:
                continue
            record = self.named(name)
            if record is not None:
                yield name, record

    def others(self, artifact: Artifact) -> Iterator[tuple[str, str]]:
        """(path, beginning of the key) of files in the artifact's place that are of other keys."""
        for folder in artifact.folders:
            for name in self._names(folder):
                key = artifact.key_in(name)
                if key is not None and key != short(artifact.key):
                    yield f"{folder}/{name}", key
        if artifact.rejects is not None:
            for path in self.store.files(artifact.rejects.rpartition("/")[0]):
                key = path.rpartition("/")[2].removesuffix(".parquet")
                if key != short(artifact.key):
                    yield path, key

    # What is entered and removed.

    def commit(
        self, artifact: Artifact, record: Mapping[str, Any], *, config: Mapping[str, Any], complete: bool = True
    ) -> None:
        """Write the manifest, then remove what the artifact replaces. `record` lists its `shards`, if it has any.

        Every manifest says its state, key and place, when it was written, by what versions and under which `config`.
        """
        before = self.belongings(artifact, self.latest(artifact) or {}) if artifact.replaces else []
        common = {
            "state": "complete" if complete else "partial",
            "key": artifact.key,
            "artifact": {name: value for name, value in asdict(artifact.place).items() if value},
            "config": config,
            "versions": versions(),
            "written": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        }
        record = {**common, **record}
        self.store.write_manifest(artifact.name, record)
        self._records[artifact.name] = record
        if artifact.replaces and complete:
            kept = self.belongings(artifact, record)
            for path in {*before, *(path for path, _ in self.others(artifact))}.difference(kept):
                self.store.delete(path)

    def forget(self, artifact: Artifact) -> None:
        """Remove what is in the artifact's place, the manifest first; shards of its own key stay to be completed."""
        before = self.latest(artifact)
        if before is not None:
            self.store.delete(manifest(artifact.name))
            self._records[artifact.name] = None
        listed = [] if before is None or artifact.is_keyed() else self.belongings(artifact, before)
        for path in (*listed, *(path for path, _ in self.others(artifact))):
            self.store.delete(path)

    def _names(self, folder: str) -> list[str]:
        return [path.removeprefix(f"{folder}/") for path in self.store.files(folder)]


def key_in(record: Mapping[str, Any]) -> str | None:
    """The key that a manifest is of."""
    return record.get("key") or record.get("cell", {}).get("key")  # older versions wrote that of cells there


def artifact_in(record: Mapping[str, Any]) -> Artifact | None:
    """The artifact that a manifest is of; None for products whose manifests did not say it in older versions."""
    place = record.get("artifact") or record.get("cell")
    return None if place is None else Artifact(**{**place, "key": key_in(record) or ""})


def manifest(name: str) -> str:
    """The path of the manifest of this name."""
    return f"{_FOLDER}/{name}.json"
