"""Deaths of workers, counted in the store, so that a row that kills its process cannot do so for ever.

A unit is marked when it is begun and cleared when it is committed. Only a unit that was begun before, and so may have
ended a worker, pays for finer marks: one before each batch and, in a batch that has ended workers often enough, one
before each row.
"""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

from jobs.store import Store


class Attempts:
    """The marks of one unit. Only one worker at a time has a unit, so reading and replacing the file is enough."""

    def __init__(self, store: Store, unit: str, max_attempts: int) -> None:
        self._store = store
        self._path = f"attempts/{unit}.json"
        self._most = max_attempts
        self._marks: dict[str, Any] = {"unit": 0, "batches": {}, "rows": {}}
        self.reason = ""  # why the last attempt ended, as the end of a sentence; empty when it could not say

    def begin(self) -> None:
        """Mark the unit as begun."""
        with suppress(FileNotFoundError):  # the first attempt has no marks
            self._marks = json.loads(self._store.read_bytes(self._path))
        self.reason = self._marks.pop("reason", "")
        self._marks["unit"] += 1
        self._save()

    def begin_batch(self, name: str) -> bool:
        """Mark the batch; whether its rows should run one by one because it has ended `max_attempts` workers."""
        if self._marks["unit"] == 1:
            return False
        return self._mark("batches", name) > self._most

    def end_batch(self, name: str) -> None:
        self._marks["batches"].pop(name, None)

    def begin_row(self, name: str) -> bool:
        """Mark the row; whether it was marked before, so that it has ended a worker."""
        return self._mark("rows", name) > 1

    def end_row(self, name: str) -> None:
        self._marks["rows"].pop(name, None)

    def ended_by(self, *prefixes: str) -> bool:
        """Whether a row with such a name has ended a worker."""
        return any(name.startswith(prefixes) for name in self._marks["rows"])

    def keep_reason(self, error: str) -> None:
        """Why the process is about to end."""
        self._marks["reason"] = f": {error}"
        self._save()

    def clear(self) -> None:
        self._store.delete(self._path)

    def _mark(self, kind: str, name: str) -> int:
        self._marks[kind][name] = self._marks[kind].get(name, 0) + 1
        self._save()
        return self._marks[kind][name]

    def _save(self) -> None:
        self._store.write_bytes(self._path, json.dumps(self._marks).encode())
