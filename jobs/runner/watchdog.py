"""A watchdog in a worker: it ends the process when a batch hangs.

The next process then computes the rows of that batch one by one, to find the one that hangs.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from jobs.cluster.attempts import Attempts

EXIT_CODE = 75  # EX_TEMPFAIL: Ray starts the worker again


class Watchdog:
    """Watches one batch at a time, which may take `limit_s` seconds; 0: no limit."""

    def __init__(self, limit_s: float = 0) -> None:
        self._limit_s = limit_s
        self._lock = threading.Lock()
        self._batch: tuple[float, str, Attempts] | None = None  # (deadline, name, notes of its unit)
        self._started = False

    @contextmanager
    def watching(self, name: str, attempts: Attempts) -> Iterator[None]:
        """Inside, the batch `name` runs; `attempts` are the notes of its unit, which tell the next process."""
        if not self._limit_s:
            yield
            return
        self._start()
        with self._lock:
            self._batch = (time.monotonic() + self._limit_s, name, attempts)
        try:
            yield
        finally:
            with self._lock:
                self._batch = None

    def _start(self) -> None:
        """Start the thread, once."""
        if not self._started:
            self._started = True
            threading.Thread(target=self._watch, daemon=True, name="closelook-watchdog").start()

    def _watch(self) -> None:
        """The thread: end the process when a batch has passed its limit."""
        while True:
            time.sleep(min(1.0, self._limit_s / 4))
            with self._lock:
                if self._batch is not None and time.monotonic() > self._batch[0]:
                    _, name, attempts = self._batch
                    reason = f"it had not ended after {self._limit_s:g} s"
                    with suppress(OSError):  # the store may be gone
                        attempts.blame(name, reason)
                    said = f"batch {name} hangs: {reason}; the next process computes its rows one by one"
                    print(said, file=sys.stderr, flush=True)
                    os._exit(EXIT_CODE)
