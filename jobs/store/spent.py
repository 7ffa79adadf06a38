"""The seconds that a thread spends on a unit of work, by kind: the store marks reads and writes, workers the rest.

Where marked parts are nested, a second counts for the innermost. A mark costs about a microsecond.
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
    """The kind of work that a thread does now, the time at which it began, and the seconds of each kind so far."""

    def __init__(self) -> None:
        self.doing, self.since = "", 0.0
        self.seconds = dict.fromkeys(KINDS, 0.0)

    def turn_to(self, kind: str) -> str:
        """Begin work of this kind ("": work that is not counted). Returns the kind of the work before."""
        now, before = time.perf_counter(), self.doing
        if before:
            self.seconds[before] += now - self.since
        self.doing, self.since = kind, now
        return before


_THREAD = _Thread()


@contextmanager
def spending(kind: str) -> Iterator[None]:
    """Count the seconds inside the block as work of this `kind`. Also serves as a decorator."""
    before = _THREAD.turn_to(kind)
    try:
        yield
    finally:
        _THREAD.turn_to(before)


@contextmanager
def unit_timed() -> Iterator[dict[str, float]]:
    """Time a unit of work inside the block. Yields its seconds by kind, which are filled in at the block's end.

    Unmarked seconds count as computing. Marked seconds since this thread's last unit, such as of reading, count too.
    """
    seconds: dict[str, float] = {}
    try:
        with spending(COMPUTE):
            yield seconds
    finally:
        seconds.update(_THREAD.seconds)
        _THREAD.seconds = dict.fromkeys(KINDS, 0.0)
