"""The manifests of a store as parsed records, by name or by artifact."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic_core import from_json

from jobs.store.artifacts import Artifact, artifact_of
from jobs.store.shards import Store

_FOLDER = "manifest"


class Records:
    """The manifests of one store. They are listed and read once; each is parsed when it is first needed."""

    def __init__(self, store: Store) -> None:
        self.store = store
        #: Manifests that were parsed or committed, by name; None if there is no readable one.
        self._records: dict[str, dict[str, Any] | None] = {}
        #: The content of all manifests in the store, by name; None until they are listed.
        self._contents: dict[str, bytes] | None = None
        self._unreadable: dict[str, str] = {}  # by name, why a manifest cannot be read
        self._listing = threading.Lock()  # held while manifests are listed

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

    def _listed(self) -> dict[str, bytes]:
        """The content of all manifests by name. Raises StoreError if the root has a later format."""
        with self._listing:
            if self._contents is None:
                self.store.check_format()
                self._contents = self.store.manifests()
            return self._contents


def is_complete(record: Mapping[str, Any] | None) -> bool:
    """True if the manifest is of a complete artifact. Older versions wrote no state, and only complete artifacts."""
    return record is not None and record.get("state", "complete") == "complete"


def key_in(record: Mapping[str, Any]) -> str | None:
    """The key of the manifest's artifact; None if the manifest has none."""
    return record.get("key") or record.get("cell", {}).get("key")  # older versions kept a cell's key under `cell`


def artifact_in(record: Mapping[str, Any]) -> Artifact | None:
    """The artifact of a manifest; None if an older version wrote the manifest without naming the artifact."""
    fields = record.get("artifact") or record.get("cell")
    return None if fields is None else artifact_of(fields, key_in(record) or "")


def manifest(name: str) -> str:
    """The path of the manifest of this name."""
    return f"{_FOLDER}/{name}.json"
