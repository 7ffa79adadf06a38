"""JSON records that many manifests share (configurations, hashes of files), stored once under a hash of their content.

A record whose content no longer has the hash in its name counts as absent.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

from jobs.store.files import Files

CONFIGS, HASHES = "configs", "hashes"  # folders
_DIGITS = 16


def put(files: Files, folder: str, record: Any) -> str:
    """Store the record. Returns the name under which `get` finds it."""
    text = json.dumps(record, indent=1, sort_keys=True, ensure_ascii=False).encode()
    name = _name_of(text)
    files.write_bytes(path_of(folder, name), text)
    return name


def get(files: Files, folder: str, name: str | None) -> Any:
    """The record of this name; None if it is missing or its content was changed."""
    if name is None:
        return None
    (text,) = files.read_all([path_of(folder, name)])
    return None if text is None or _name_of(text) != name else json.loads(text)


def path_of(folder: str, name: str) -> str:
    """The path of the record of this name."""
    return f"{folder}/{name}.json"


def _name_of(text: bytes) -> str:
    """The name of a record with this content: the first digits of its sha256."""
    return hashlib.sha256(text).hexdigest()[:_DIGITS]
