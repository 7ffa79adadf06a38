"""The ledger: which artifacts are done, by their manifests. Whoever asks what there is, or enters something, asks here.

Only the driver of a run writes manifests; workers write shards. So a ledger lists them once and keeps what it read;
what it enters itself it knows.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, Literal

import pyarrow as pa

from jobs.store.artifacts import Artifact, short
from jobs.store.files import StoreError
from jobs.store.manifests import Listings, bytes_in, bytes_there, paths_in
from jobs.store.shards import Store
from jobs.versions import versions

State = Literal["done", "partial", "missing"]
_FOLDER = "manifest"


class Ledger:
    """The artifacts of one store. No query changes it."""

    def __init__(self, store: Store) -> None:
        self.store = store
        #: Manifests that were asked for or entered, by name; None where no readable one exists.
        self._records: dict[str, dict[str, Any] | None] = {}
        #: All manifests as the store holds them, by name; None until the first is asked for.
        self._contents: dict[str, bytes] | None = None
        self._unreadable: dict[str, str] = {}  # by name, why a manifest cannot be read
        self._listings = Listings(store)

    # What there is.

    def named(self, name: str) -> dict[str, Any] | None:
        """The manifest of this name; None for none, and for one that cannot be read."""
        if name not in self._records:
            content = self._listed().get(name)
            self._records[name] = None if content is None else self._parsed(name, content)
        return self._records[name]

    def _parsed(self, name: str, content: bytes) -> dict[str, Any] | None:
        try:
            record = json.loads(content)
        except ValueError:
            self._unreadable[name] = "it is no JSON" if content else "it is empty"
            return None
        if not isinstance(record, dict):
            self._unreadable[name] = "it is no JSON object"
            return None
        return record

    def unreadable(self) -> dict[str, str]:
        """The paths of manifests that cannot be read, with a line that says so."""
        for name in self._listed():
            self.named(name)
        advice = "its artifact counts as missing: `closelook run` makes it again, `closelook gc` removes the file"
        return {
            manifest(name): f"{self.store.url(manifest(name))} cannot be read, {why}: {advice}"
            for name, why in sorted(self._unreadable.items())
        }

    def _sizes_in(self, folder: str) -> Mapping[str, int]:
        self._listed()  # first the manifests: what they list is there then
        return self._listings.sizes(folder)

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
        """Done by its manifest and the files that it lists; partial as soon as there is a manifest or a shard."""
        record = self.record(artifact)
        if is_complete(record):
            return "partial" if self.damage(artifact) else "done"
        begun = record is not None or any(map(artifact.owns, self._sizes_in(artifact.folder)))
        return "partial" if begun else "missing"

    def is_done(self, artifact: Artifact) -> bool:
        return self.state(artifact) == "done"

    def shards(self, artifact: Artifact, folder: str | None = None) -> list[str]:
        """File names of the committed shards of this very key, whether a manifest lists them or not.

        `folder` is one of the artifact's; None is the first.
        """
        return list(self.sizes(artifact, folder))

    def sizes(self, artifact: Artifact, folder: str | None = None) -> dict[str, int]:
        """The bytes of these `shards`, by their names: a folder's as they are now."""
        there = self._listings.anew(folder or artifact.folder) if artifact.is_keyed() else {}
        return {name: size for name, size in there.items() if artifact.owns(name)}

    def damage(self, artifact: Artifact) -> dict[str, str]:
        """The faults of files that its manifest lists, by path: gone, or of another size than when it was written.

        It takes a listing for all artifacts of a product and model together.
        """
        record = self.record(artifact)
        wrong: dict[str, str] = {}
        for folder, sizes in zip(artifact.folders, bytes_in(artifact, record or {}), strict=False):
            there = self._sizes_in(folder) if sizes else {}
            for name, size in sizes.items():
                if name not in there:
                    wrong[f"{folder}/{name}"] = "is gone"
                elif size not in (None, there[name]):
                    wrong[f"{folder}/{name}"] = f"has {there[name]} bytes, and had {size}"
        return wrong

    def described_damage(self, artifact: Artifact) -> str | None:
        """A line that names a damaged file of a complete artifact; None where there is none."""
        damage = self.damage(artifact) if is_complete(self.record(artifact)) else {}
        if not damage:
            return None
        path, what = next(iter(damage.items()))
        others = f" (and {len(damage) - 1} more)" if len(damage) > 1 else ""
        return f"{artifact}: {self.store.url(path)} {what}{others}: `closelook run` makes it again"

    def whole(self, artifact: Artifact) -> dict[str, tuple[int, int]]:
        """Stamps of the shards in this place, whatever their key, by path: exactly those that the manifest lists.

        Raises StoreError naming a file that is gone, of another size, or not listed. Manifests of older versions list
        none: then all of its key are.
        """
        record = self.latest(artifact) or {}
        own = replace(artifact, key=key_in(record) or "")
        stamps = self.store.stamps(artifact.folder)
        sizes = bytes_in(own, record)[0]
        if "shards" not in record:
            named = [path for path in stamps if not own.key or own.owns(path.rpartition("/")[2])]
            sizes = dict.fromkeys(path.rpartition("/")[2] for path in named)
        listed = {f"{artifact.folder}/{name}": size for name, size in sizes.items()}
        name = manifest(artifact.name)
        for path, size in listed.items():
            if path not in stamps:
                raise StoreError(f"{self.store.url(path)} is gone, against {name}: run `closelook prepare`")
            if size not in (None, stamps[path][1]):
                what = f"{self.store.url(path)} has {stamps[path][1]} bytes, against {size} in {name}"
                raise StoreError(f"{what}: run `closelook prepare`")
        if record and not listed:
            raise StoreError(f"{self.store.url(artifact.folder)} is empty, against {name}: run `closelook prepare`")
        for path in sorted(stamps.keys() - listed.keys()):
            raise StoreError(f"{self.store.url(path)} is not among the files that {name} lists: remove it")
        return {path: stamps[path] for path in listed}

    def read_whole(
        self, artifact: Artifact, paths: Sequence[str], schema: pa.Schema, columns: list[str] | None = None
    ) -> Iterator[pa.Table]:
        """The shards `paths` that `whole` gave, in order. Raises StoreError at their end for too few or many rows."""
        rows, record = 0, self.latest(artifact) or {}
        for table in self.store.read_each(paths, schema, columns):
            rows += table.num_rows
            yield table
        if rows != record.get("rows", rows):
            place, name = self.store.url(artifact.folder), manifest(artifact.name)
            raise StoreError(
                f"{place} holds {rows} rows, against {record['rows']} in {name}: remove the folder and run "
                "`closelook prepare`"
            )

    def files(self, artifact: Artifact) -> list[str]:
        """Paths of the shards that its manifest lists, in order."""
        record = self.record(artifact) or {}
        return [f"{artifact.folder}/{shard}" for shard in record.get("shards", ())]

    def belongings(self, artifact: Artifact, record: Mapping[str, Any]) -> list[str]:
        """Paths that are there of what `record`, a manifest in this place, lists."""
        return [path for path in paths_in(artifact, record) if self.store.exists(path)]

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
            for name in self._listings.anew(folder):
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
        self,
        artifact: Artifact,
        record: Mapping[str, Any],
        *,
        config: Mapping[str, Any],
        complete: bool = True,
        sizes: Mapping[str, int] | None = None,
    ) -> None:
        """Write the manifest, then remove what the artifact replaces. `record` lists its `shards`, if it has any.

        Every manifest says its state, key and place, the bytes of its files, when it was written, by what versions and
        under which `config`. `sizes` are those of an artifact of one folder, where they are known.
        """
        before = set(self.belongings(artifact, self.latest(artifact) or {})) if artifact.replaces else set()
        there = [self._listings.anew(folder) for folder in artifact.folders] if sizes is None else [sizes]
        common = {
            "state": "complete" if complete else "partial",
            "key": artifact.key,
            "artifact": {name: value for name, value in asdict(artifact.place).items() if value},
            "bytes": bytes_there(artifact, record, there),
            "config": config,
            "versions": versions(),
            "written": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        }
        record = {**common, **record}
        self.store.write_manifest(artifact.name, record)
        self._records[artifact.name] = record
        self._unreadable.pop(artifact.name, None)
        if artifact.replaces and complete:
            for folder, names in zip(artifact.folders, there, strict=True):
                others = {name for name in names if artifact.key_in(name) not in (None, short(artifact.key))}
                before |= {f"{folder}/{name}" for name in others}
            for path in before.difference(paths_in(artifact, record)):
                self._delete(path)

    def forget(self, artifact: Artifact) -> None:
        """Remove what is in the artifact's place, the manifest first; shards of its own key stay to be completed."""
        before = self.latest(artifact)
        if before is not None:
            self.store.delete(manifest(artifact.name))
            self._records[artifact.name] = None
        listed = [] if before is None or artifact.is_keyed() else self.belongings(artifact, before)
        for path in (*listed, *(path for path, _ in self.others(artifact))):
            self._delete(path)

    def discard_damaged(self, artifact: Artifact) -> None:
        """Remove shards that are damaged, with what has their names: a run makes what is not there.

        A manifest that calls the artifact complete goes first: it says nothing of shards that are made from now on.
        """
        damage = self.damage(artifact)
        if damage and is_complete(self.record(artifact)):
            self.store.delete(manifest(artifact.name))
            self._records[artifact.name] = None
        for name in dict.fromkeys(path.rpartition("/")[2] for path in damage):
            for folder in artifact.folders:
                self._delete(f"{folder}/{name}")

    def _delete(self, path: str) -> None:
        self.store.delete(path)
        self._listings.forget(path)


def is_complete(record: Mapping[str, Any] | None) -> bool:
    """True where a manifest is of a complete artifact; older versions wrote no others."""
    return record is not None and record.get("state", "complete") == "complete"


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
