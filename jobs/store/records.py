"""The manifests of a store, parsed: what was entered, under which key."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from typing import Any

from jobs.store.artifacts import Artifact, artifact_of
from jobs.store.shards import Store

_FOLDER = "manifest"


class Records:
    """The manifests of one store, listed once; each is parsed when it is asked for."""

    def __init__(self, store: Store) -> None:
        self.store = store
        #: Manifests that were asked for or entered, by name; None where no readable one exists.
        self._records: dict[str, dict[str, Any] | None] = {}
        #: All manifests as the store holds them, by name; None until the first is asked for.
        self._contents: dict[str, bytes] | None = None
        self._unreadable: dict[str, str] = {}  # by name, why a manifest cannot be read
        self._listing = threading.Lock()  # held while they are listed

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

    def latest(self, artifact: Artifact) -> dict[str, Any] | None:
        """The manifest in the artifact's place: of this very key, or, where artifacts replace each other, of any."""
        return self.named(artifact.name)

    def record(self, artifact: Artifact) -> dict[str, Any] | None:
        """The manifest of this very key."""
        record = self.latest(artifact)
        if record is None or not artifact.replaces:  # the name of its manifest tells its key
            return record
        return record if key_in(record) == artifact.key else None

    def records(self, product: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
        """(name, manifest) of everything that was entered, or of one product."""
        names = {*self._listed(), *self._records}
        if product:
            names = {name for name in names if name.partition(".")[0] == product}
        for name in sorted(names):
            record = self.named(name)
            if record is not None:
                yield name, record

    def _listed(self) -> dict[str, bytes]:
        with self._listing:
            if self._contents is None:
                self.store.check_format()
                self._contents = self.store.manifests()
            return self._contents


def is_complete(record: Mapping[str, Any] | None) -> bool:
    """True where a manifest is of a complete artifact; older versions wrote no others."""
    return record is not None and record.get("state", "complete") == "complete"


def key_in(record: Mapping[str, Any]) -> str | None:
    """The key that a manifest is of."""
    return record.get("key") or record.get("cell", {}).get("key")  # older versions wrote that of cells there


def artifact_in(record: Mapping[str, Any]) -> Artifact | None:
    """The artifact that a manifest is of; None for products whose manifests did not say it in older versions."""
    place = record.get("artifact") or record.get("cell")
    return None if place is None else artifact_of(place, key_in(record) or "")


def manifest(name: str) -> str:
    """The path of the manifest of this name."""
    return f"{_FOLDER}/{name}.json"
