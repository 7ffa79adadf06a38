"""What a unit's seconds were spent on, by thread: the store says when it reads and writes, workers what they do else.

Of nested parts, a second counts for the innermost. Telling costs about a microsecond a part.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

READ, LOAD, WAIT, COMPUTE, COMMIT = "read", "load", "wait", "compute", "commit"
KINDS = {
    READ: "reading from the store",
    LOAD: "loading models",
    WAIT: "waiting for the device, which the unit before still has",
    COMPUTE: "computing",
    COMMIT: "making files and writing them to the store",
}


class _Thread(threading.local):
    """What this thread does, since when, and the seconds of each kind so far."""

    def __init__(self) -> None:
        self.doing, self.since = "", 0.0
        self.seconds = dict.fromkeys(KINDS, 0.0)

    def turn_to(self, kind: str) -> str:
        """What it did before; no kind is none that counts."""
        now, before = time.perf_counter(), self.doing
        if before:
            self.seconds[before] += now - self.since
        self.doing, self.since = kind, now
        return before


_THREAD = _Thread()


@contextmanager
def spending(kind: str) -> Iterator[None]:
    """What is done inside counts as `kind`; also a decorator."""
    before = _THREAD.turn_to(kind)
    try:
        yield
    finally:
        _THREAD.turn_to(before)


@contextmanager
def unit_timed() -> Iterator[dict[str, float]]:
    """A unit is done inside, and computed while nothing else is said; its seconds by kind, whole at the end.

    What this thread has read since the last unit belongs to it.
    """
    seconds: dict[str, float] = {}
    try:
        with spending(COMPUTE):
            yield seconds
    finally:
        seconds.update(_THREAD.seconds)
        _THREAD.seconds = dict.fromkeys(KINDS, 0.0)
