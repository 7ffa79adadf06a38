"""Notes about damaged files whose size is unchanged, so that a listing does not show the damage.

A process that reads such a file leaves a note in the root. `closelook status` then names the file, and the next run
makes it again. The note is removed with the file.
"""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress

from jobs.store.files import Files

FOLDER = "damaged"


def note(files: Files, path: str, fault: str) -> None:
    """Note that the file at `path` is damaged; `fault` follows the path in messages, as "cannot be read".

    Does nothing if the root cannot be written to.
    """
    text = json.dumps({"path": path, "fault": fault})
    with suppress(OSError, RuntimeError):  # the root is full or read-only, or another run has taken it over
        files.write_bytes(note_of(path), text.encode())


def notes(files: Files) -> dict[str, str]:
    """The faults that were noted, by the path of the damaged file."""
    faults = {}
    for content in files.read_all(files.files(FOLDER, ".json")):
        with suppress(ValueError, KeyError):  # the note itself is damaged
            record = json.loads(content or b"")
            faults[record["path"]] = record["fault"]
    return faults


def clear(files: Files, path: str) -> None:
    """Remove the note about the file at `path`, which is removed or made again."""
    files.delete(note_of(path))


def note_of(path: str) -> str:
    """The path of the note about the damaged file at `path`."""
    return f"{FOLDER}/{hashlib.sha256(path.encode()).hexdigest()[:16]}.json"
