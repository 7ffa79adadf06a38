"""The states of artifacts: done by their manifests and the files that these list, damaged, partial or missing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Literal

import pyarrow as pa

from jobs.store import by_hash, damage
from jobs.store.artifacts import Artifact, short
from jobs.store.files import Damaged, StoreError, Written
from jobs.store.listings import Listings, by_path, paths_in, sizes_in
from jobs.store.records import Records, is_complete, key_in, manifest
from jobs.store.shards import Store

#: `damaged` is complete by its manifest, which lists a file that is gone, or not as it was written.
State = Literal["done", "partial", "damaged", "missing"]
NO_HASHES = ""  # the name of the side file of a manifest that lists no files


class States(Records):
    """The artifacts of one store. No query changes it."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self._listings = Listings(store)
        self._noted: dict[str, str] | None = None  # files with other bytes than were written; None: not looked at
        self._states: dict[Artifact, State] = {}  # since something was entered, removed or listed anew

    def state(self, artifact: Artifact) -> State:
        """Done by its manifest and the files that it lists; partial as soon as there is a manifest or a shard."""
        state = self._states.get(artifact)
        if state is None:
            state = self._states[artifact] = self._state(artifact)
        return state

    def _state(self, artifact: Artifact) -> State:
        record = self.record(artifact)
        if is_complete(record):
            return "damaged" if self.damage(artifact) else "done"
        return "partial" if record is not None or self.begun(artifact) else "missing"

    @contextmanager
    def listed_ahead(self) -> Iterator[None]:
        """Files are listed by another thread while something else is done inside: of very many it takes its time."""

        def list_ahead() -> None:
            products = {name.partition(".")[0] for name in self._listed()}
            self._listings.ahead(folder for product in products for folder in Artifact(product).folders)

        with ThreadPoolExecutor(1) as thread:
            listing = thread.submit(list_ahead)
            yield
            listing.result()

    def is_done(self, artifact: Artifact) -> bool:
        return self.state(artifact) == "done"

    def shards(self, artifact: Artifact, folder: str | None = None) -> list[str]:
        """File names of the shards of this very key as they are now, whether a manifest lists them or not.

        `folder` is one of the artifact's; None is the first.
        """
        if not artifact.is_keyed():
            return []
        self._states.clear()
        return list(filter(artifact.owns, self._listings.anew(folder or artifact.folder)))

    def begun(self, artifact: Artifact) -> list[str]:
        """Paths of shards of this very key in its first folder, as the folder was listed or written to since."""
        names = filter(artifact.owns, self._names_in(artifact.folder)) if artifact.is_keyed() else ()
        return [f"{artifact.folder}/{name}" for name in names]

    def saw(self, files: Mapping[str, Written]) -> None:
        """Know of files that workers have written since folders were listed."""
        self._states.clear()
        for path, file in files.items():
            self._listings.add(path, file.size)

    def damage(self, artifact: Artifact) -> dict[str, str]:
        """The faults of files that its manifest lists, by path: gone, of another size, or noted to have other bytes.

        It takes a listing for all artifacts of a product together.
        """
        faults: dict[str, str] = {}
        noted = self._notes()
        for path, size in sizes_in(artifact, self.record(artifact) or {}).items():
            there = self._listings.size(path)
            if there is None:
                faults[path] = "is gone"
            elif size not in (None, there):
                faults[path] = f"has {there} bytes, and had {size}"
            elif path in noted:
                faults[path] = noted[path]
        return faults

    def _notes(self) -> dict[str, str]:
        if self._noted is None:
            self._noted = damage.notes(self.store)
        return self._noted

    def hashes(self, record: Mapping[str, Any]) -> dict[str, str] | None:
        """The sha256 of files by path, those of a manifest among them; None where no side file says them."""
        if record.get("hashes") == NO_HASHES:
            return {}
        stored = by_hash.get(self.store, by_hash.HASHES, record.get("hashes"))
        return None if stored is None else by_path(stored)

    def config_of(self, record: Mapping[str, Any]) -> dict[str, Any] | None:
        """The configuration under which a manifest was entered; older versions embedded it. None where it is lost."""
        config = record.get("config")
        return by_hash.get(self.store, by_hash.CONFIGS, config) if isinstance(config, str) else config

    def is_verifiable(self, record: Mapping[str, Any]) -> bool:
        """False of a manifest whose files have no hashes: an older version wrote it."""
        return "hashes" in record

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

        Raises Damaged naming a file that is gone or of another size, StoreError for one not listed. Manifests of older
        versions list none: then all of its key are.
        """
        record = self.latest(artifact) or {}
        own = replace(artifact, key=key_in(record) or "")
        stamps = self.store.stamps(artifact.folder)
        listed = {path: size for path, size in sizes_in(own, record).items() if path.startswith(f"{own.folder}/")}
        if "shards" not in record:
            listed = {path: None for path in stamps if not own.key or own.owns(path.rpartition("/")[2])}
        name = manifest(artifact.name)
        for path, size in listed.items():
            if path not in stamps:
                raise Damaged(f"{self.store.url(path)} is gone, against {name}: run `closelook prepare`")
            if size not in (None, stamps[path][1]):
                what = f"{self.store.url(path)} has {stamps[path][1]} bytes, against {size} in {name}"
                raise Damaged(f"{what}: run `closelook prepare`")
        if record and not listed:
            raise Damaged(f"{self.store.url(artifact.folder)} is empty, against {name}: run `closelook prepare`")
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

    def _names_in(self, folder: str) -> list[str]:
        self._listed()  # first the manifests: what they list is there then
        return self._listings.names(folder)
