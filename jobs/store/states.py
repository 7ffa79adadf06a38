"""The manifests of a store as parsed records, and the states of artifacts by them and by the files that they list."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Literal

import pyarrow as pa
from pydantic_core import from_json

from closelook.jobs.store.artifacts import Artifact, is_complete, key_in, short
from closelook.jobs.store.files import Damaged, Written
from closelook.jobs.store.listings import Listings, paths_in, sizes_in
from closelook.jobs.store.manifests import manifest
from closelook.jobs.store.shards import Columns, Store

#: `damaged`: complete by its manifest, but a file that the manifest lists is gone or changed.
State = Literal["done", "partial", "damaged", "missing"]


class States:
    """Queries about the artifacts of one store; none of them changes it.

    Manifests are listed and read once; each is parsed when it is first needed.
    """

    def __init__(self, store: Store) -> None:
        self.store = store
        #: Manifests that were parsed or committed, by name; None if there is no readable one.
        self._records: dict[str, dict[str, Any] | None] = {}
        #: The content of all manifests in the store, by name; None until they are listed.
        self._contents: dict[str, bytes] | None = None
        self._unreadable: dict[str, str] = {}  # by name, why a manifest cannot be read
        self._listing = threading.Lock()  # held while manifests are listed
        self._listings = Listings(store)
        self._states: dict[Artifact, State] = {}  # states found since the last commit, removal or new listing

    def named(self, name: str) -> dict[str, Any] | None:
        """The manifest of this name; None if there is none or it cannot be read."""
        if name not in self._records:
            content = self._listed().get(name)
            self._records[name] = None if content is None else self._parsed(name, content)
        return self._records[name]

    def _parsed(self, name: str, content: bytes) -> dict[str, Any] | None:
        """The record in `content`; None, with the reason in `_unreadable`, if it is not a JSON object."""
        try:
            record = from_json(content)  # takes half of the time of json.loads
        except ValueError:
            self._unreadable[name] = "it is not JSON" if content else "it is empty"
            return None
        if not isinstance(record, dict):
            self._unreadable[name] = "it is not a JSON object"
            return None
        return record

    def unreadable(self) -> dict[str, str]:
        """For each manifest that cannot be read, by path, one line with the reason and the remedy. Parses all."""
        for name in self._listed():
            self.named(name)
        advice = f"its artifact counts as missing: {self.store.remedy}, `closelook gc` removes the file"
        return {
            manifest(name): f"{self.store.url(manifest(name))} cannot be read ({why}): {advice}"
            for name, why in sorted(self._unreadable.items())
        }

    def latest(self, artifact: Artifact) -> dict[str, Any] | None:
        """The manifest in the artifact's place; where artifacts replace each other, it may have another key."""
        return self.named(artifact.name)

    def record(self, artifact: Artifact) -> dict[str, Any] | None:
        """The manifest of the artifact under its own key; None if there is none."""
        record = self.latest(artifact)
        if record is None or not artifact.replaces:  # the name of its manifest tells its key
            return record
        return record if key_in(record) == artifact.key else None

    def records(self, product: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
        """(name, manifest) of every readable manifest, or of those of one product, sorted by name."""
        listed = self._listed()
        names = sorted([*listed, *(self._records.keys() - listed.keys())])  # fast, since `listed` is nearly sorted
        if product:
            names = [name for name in names if name.partition(".")[0] == product]
        for name in names:
            record = self.named(name)
            if record is not None:
                yield name, record

    def products(self) -> set[str]:
        """The names of the products that have manifests."""
        return {name.partition(".")[0] for name in self._listed()}

    def _listed(self) -> dict[str, bytes]:
        """The content of all manifests by name. Raises StoreError if the root has a later format."""
        with self._listing:
            if self._contents is None:
                self.store.check_format()
                self._contents = self.store.manifests()
            return self._contents

    def state(self, artifact: Artifact) -> State:
        """The state of an artifact. It is partial as soon as it has a manifest or a shard; computed once."""
        state = self._states.get(artifact)
        if state is None:
            state = self._states[artifact] = self._state(artifact)
        return state

    def _state(self, artifact: Artifact) -> State:
        """The state of an artifact by its manifest and the listings of its files."""
        record = self.record(artifact)
        if record is not None and is_complete(record):
            return "damaged" if self._faults(artifact, record) else "done"
        return "partial" if record is not None or self.begun(artifact) else "missing"

    @contextmanager
    def listed_ahead(self) -> Iterator[None]:
        """List all files of the store in another thread while the block runs, since listing very many takes long."""

        def list_ahead() -> None:
            self._listings.ahead(folder for product in self.products() for folder in Artifact(product).folders)

        with ThreadPoolExecutor(1) as thread:
            listing = thread.submit(list_ahead)
            yield
            listing.result()

    def is_done(self, artifact: Artifact) -> bool:
        """True if the artifact is complete and none of its files is damaged."""
        return self.state(artifact) == "done"

    def shards(self, artifact: Artifact, folder: str | None = None) -> list[str]:
        """The names of shards under the artifact's own key that exist now in one of its folders (None: the first)."""
        if not artifact.is_keyed():
            return []
        self._states.clear()
        return list(filter(artifact.owns, self._listings.anew(folder or artifact.folder)))

    def begun(self, artifact: Artifact) -> list[str]:
        """The paths of shards under the artifact's own key in its first folder, by the listing that is kept."""
        names = filter(artifact.owns, self._names_in(artifact.folder)) if artifact.is_keyed() else ()
        return [f"{artifact.folder}/{name}" for name in names]

    def saw(self, files: Mapping[str, Written]) -> None:
        """Add to the listings the `files` that workers have written since."""
        self._states.clear()
        for path, file in files.items():
            self._listings.put(path, file.size)

    def damage(self, artifact: Artifact) -> dict[str, str]:
        """The faults of the files that the artifact's manifest lists (gone, or of another size), by path."""
        return self._faults(artifact, self.record(artifact) or {})

    def _faults(self, artifact: Artifact, record: Mapping[str, Any]) -> dict[str, str]:
        """The faults of the files that this manifest of the artifact lists, by path."""
        faults: dict[str, str] = {}
        for path, size in sizes_in(artifact, record).items():
            current_size = self._listings.size(path)
            if current_size is None:
                faults[path] = "is gone"
            elif size not in (None, current_size):
                faults[path] = f"has {current_size} bytes, but was written with {size}"
        return faults

    def described_damage(self, artifact: Artifact) -> str | None:
        """One line that names a damaged file of a complete artifact and the remedy; None if no file is damaged."""
        damage = self.damage(artifact) if is_complete(self.record(artifact)) else {}
        if not damage:
            return None
        path, fault = next(iter(damage.items()))
        others = f" (and {len(damage) - 1} more)" if len(damage) > 1 else ""
        return f"{artifact}: {self.store.url(path)} {fault}{others}: {self.store.remedy}"

    def whole(self, artifact: Artifact) -> dict[str, tuple[int, int]]:
        """(time of change in ns, bytes) by path of the shards that the manifest in this place lists, whatever its key.

        Empty without a manifest. Raises Damaged if one of them is gone or has another size, and if there is a shard
        that is not listed.
        """
        record = self.latest(artifact)
        if record is None:
            return {}
        current = replace(artifact, key=key_in(record) or "")
        stamps = self.store.stamps(artifact.folder)
        listed = {
            path: size for path, size in sizes_in(current, record).items() if path.startswith(f"{current.folder}/")
        }
        name = manifest(artifact.name)
        for path, size in listed.items():
            if path not in stamps:
                raise Damaged(f"{self.store.url(path)} is gone, but {name} lists it: {self.store.remedy_for_samples}")
            if size != stamps[path][1]:
                fault = f"{self.store.url(path)} has {stamps[path][1]} bytes, but {name} says {size}"
                raise Damaged(f"{fault}: {self.store.remedy_for_samples}")
        if not listed:
            fault = f"{self.store.url(artifact.folder)} is empty, but {name} is there"
            raise Damaged(f"{fault}: {self.store.remedy_for_samples}")
        for path in sorted(stamps.keys() - listed.keys()):
            raise Damaged(f"{self.store.url(path)} is not among the files that {name} lists: remove it")
        return {path: stamps[path] for path in listed}

    def read_whole(
        self, artifact: Artifact, paths: Sequence[str], schema: pa.Schema, columns: Columns = None
    ) -> Iterator[pa.Table]:
        """The tables of the shards `paths`, which `whole` returned, in order.

        Raises Damaged after the last one if together they have other than the manifest's number of rows.
        """
        rows, record = 0, self.latest(artifact) or {}
        for table in self.store.read_each(paths, schema, columns):
            rows += table.num_rows
            yield table
        if rows != record.get("rows", rows):
            url, name = self.store.url(artifact.folder), manifest(artifact.name)
            raise Damaged(
                f"{url} holds {rows} rows, but {name} says {record['rows']}: remove the folder and "
                f"{self.store.remedy_for_samples}"
            )

    def files(self, artifact: Artifact) -> list[str]:
        """The paths of the shards that the artifact's manifest lists, in order; [] if it has no manifest."""
        record = self.record(artifact) or {}
        return [f"{artifact.folder}/{shard}" for shard in record.get("shards", ())]

    def belongings(self, artifact: Artifact, record: Mapping[str, Any]) -> list[str]:
        """The paths of those files that exist of the ones that `record`, a manifest in this place, lists."""
        return [path for path in paths_in(artifact, record) if self.store.exists(path)]

    def read(self, artifact: Artifact, schema: pa.Schema, columns: Columns = None) -> pa.Table:
        """All rows of the artifact, shards in order. Raises Damaged unless it is done.

        There are no rows, and no shards, if no sample of the task could be tokenised.
        """
        if not self.is_done(artifact):
            raise Damaged(f"{artifact} is not complete: run `closelook run --root {self.store.root}`")
        files = self.files(artifact)
        if not files:
            empty = schema.empty_table()
            return empty if columns is None else empty.select(columns)
        return self.store.read(files, schema, columns)

    def others(self, artifact: Artifact) -> Iterator[tuple[str, str]]:
        """(path, shortened key) of every shard and file of rejects in the artifact's place under another key."""
        for folder in artifact.folders if artifact.is_keyed() else ():
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
        """The names of the files in a folder, by the listing that is kept."""
        self._listed()  # list manifests before files: then the files that they name exist in the listing of files
        return self._listings.names(folder)
