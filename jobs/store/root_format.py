"""The format of a root, a number: closelook refuses a root of a format that only a later version knows.

1 has no number; its manifests embed configurations and list no hashes. 2 is described in docs/store.md.
"""

from __future__ import annotations

import json

from jobs.store.files import Files, StoreError
from jobs.versions import versions

FIRST, FORMAT = 1, 2
_PATH = "format.json"


def format_of(files: Files) -> int:
    """The format of a root. Raises StoreError for a later one, and for one whose number cannot be read."""
    (text,) = files.read_all([_PATH])
    if text is None:
        return FIRST
    try:
        record = json.loads(text)
        number, writer = int(record["format"]), str(record["closelook"])
    except (ValueError, KeyError, TypeError):
        raise StoreError(
            f"{files.url(_PATH)} does not say which format the root has: remove the file if no later closelook than "
            f"{_version()} wrote there"
        ) from None
    if number > FORMAT:
        raise StoreError(
            f"the root {files.root} has format {number}, which closelook {writer} wrote; this is closelook "
            f"{_version()}, which reads formats up to {FORMAT}: install a later version"
        )
    return number


def write_format(files: Files) -> None:
    """Let the root have this version's format."""
    files.write_bytes(_PATH, json.dumps({"format": FORMAT, "closelook": _version()}).encode())


def _version() -> str:
    return versions().get("closelook", "(not installed)")
