"""The number of a root's format: closelook refuses a root whose format only a later version knows.

In format 1, which stores no number, manifests embed configurations and list no hashes. Format 2 is described in
docs/store.md.
"""

from __future__ import annotations

import json

from jobs.store.files import Files, StoreError
from jobs.versions import versions

FIRST, FORMAT = 1, 2
_PATH = "format.json"


def format_of(files: Files) -> int:
    """The format of a root. Raises StoreError if it is later than FORMAT or its number cannot be read."""
    (text,) = files.read_all([_PATH])
    if text is None:
        return FIRST
    try:
        record = json.loads(text)
        number, writer = int(record["format"]), str(record["closelook"])
    except (ValueError, KeyError, TypeError):
        raise StoreError(
            f"{files.url(_PATH)} does not say which format the root has: remove the file, unless a closelook later "
            f"than {_version()} wrote to this root"
        ) from None
    if number > FORMAT:
        raise StoreError(
            f"the root {files.root} has format {number}, which closelook {writer} wrote; this is closelook "
            f"{_version()}, which reads formats up to {FORMAT}: install closelook {writer} or later"
        )
    return number


def write_format(files: Files) -> None:
    """Record in the root that it has this version's format."""
    files.write_bytes(_PATH, json.dumps({"format": FORMAT, "closelook": _version()}).encode())


def _version() -> str:
    """The installed version of closelook, for messages."""
    return versions().get("closelook", "(not installed)")
