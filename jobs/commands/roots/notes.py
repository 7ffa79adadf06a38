"""Replaces the ids of forgotten samples by placeholders in the records of runs and in logs.

Only fields with ids of samples, and messages, are changed: elsewhere the same word may be a setting or a count.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from jobs.store import Store

_FOLDERS = ("runs", "logs")
_IDS = frozenset({"sample", "samples", "sample_id", "sample_ids"})  # fields that hold an id, or a list of ids
_MESSAGES = frozenset({"ending", "error", "errors", "failures"})  # fields that hold messages


def rename_samples(store: Store, placeholders: Mapping[str, str]) -> None:
    """Replace ids of samples by their `placeholders` in all records of runs and logs, and remove notes of attempts.

    The notes may name samples, and are needed only while a run goes on.
    """
    renaming = _Renaming(placeholders)
    for path in (path for folder in _FOLDERS for path in store.files(folder, "", recursive=True)):
        before = store.read_bytes(path).decode()
        after = renaming.content(path, before)
        if after != before:
            store.write_bytes(path, after.encode())
    for path in store.files("attempts", ".json", recursive=True):
        store.delete(path)


@dataclass(frozen=True)
class _Renaming:
    """Replaces ids of samples by `placeholders` in the contents of files."""

    placeholders: Mapping[str, str]

    def content(self, path: str, content: str) -> str:
        """The content of the file at `path` with ids replaced, by its format: JSON lines, JSON or plain text."""
        if path.endswith(".jsonl"):
            return "".join(f"{self._json(line, None)}\n" for line in content.splitlines())
        return self._json(content, 1) if path.endswith(".json") else self._message(content)

    def _json(self, content: str, indent: int | None) -> str:
        """A JSON text with ids replaced; unchanged, to the byte, if it names none."""
        try:
            record = json.loads(content)
        except ValueError:  # it was cut, or is not JSON
            return self._message(content)
        renamed = self._value("", record)
        return content if renamed == record else json.dumps(renamed, indent=indent, ensure_ascii=False)

    def _value(self, field: str, value: Any) -> Any:
        """The value of a field, or of an entry of its list, with ids replaced at any depth."""
        if isinstance(value, dict):
            return {name: self._value(name, entry) for name, entry in value.items()}
        if isinstance(value, list):
            return [self._value(field, entry) for entry in value]
        if isinstance(value, str) and field in _IDS:
            return self.placeholders.get(value, value)
        if isinstance(value, str) and field in _MESSAGES:
            return self._message(value)
        return value

    def _message(self, text: str) -> str:
        """A message with the ids that it names replaced."""
        return self._named.sub(lambda named: f"{named[1]} {self.placeholders[named[2]]}", text)

    @cached_property
    def _named(self) -> re.Pattern[str]:
        """A pattern for an id as messages name it: `sample ID`, or `as ID: ...` where a sample is given as example."""
        longest_first = sorted(self.placeholders, key=len, reverse=True)
        ids = "|".join(map(re.escape, longest_first))
        return re.compile(rf"\b(sample|as) ({ids})(?![\w-]|\.\w)")
