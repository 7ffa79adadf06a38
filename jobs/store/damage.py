"""Notes of files whose bytes are not those that were written, which a listing of their sizes does not show.

Whoever reads such a file leaves a note in the root: `closelook status` then names the file, and the next run makes it
again. A note is removed with the file.
"""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress

from jobs.store.files import Files

FOLDER = "damaged"


def note(files: Files, path: str, fault: str) -> None:
    """Note that the file at `path` is damaged, as `fault` says of it: "has other bytes than were written".

    Does nothing where nothing can be written.
    """
    text = json.dumps({"path": path, "fault": fault})
    with suppress(OSError, RuntimeError):  # of a root that is full, read-only, or another run's by now
        files.write_bytes(note_of(path), text.encode())


def notes(files: Files) -> dict[str, str]:
    """The faults that were noted, by the path of the damaged file."""
    faults = {}
    for content in files.read_all(files.files(FOLDER, ".json")):
        with suppress(ValueError, KeyError):  # a note that is itself damaged says nothing
            record = json.loads(content or b"")
            faults[record["path"]] = record["fault"]
    return faults


def clear(files: Files, path: str) -> None:
    """Remove the note of a file that is removed or made again."""
    files.delete(note_of(path))


def note_of(path: str) -> str:
    """The path of the note of a damaged file."""
    return f"{FOLDER}/{hashlib.sha256(path.encode()).hexdigest()[:16]}.json"
