"""SIGTERM of a worker, as a spot node's notice: its units are finished or dropped, and it ends, within 20 seconds.

Python runs signal handlers in the main thread, between two of its own operations: while that computes a batch or waits
for other threads, it hears of nothing for minutes. So a handler of C wakes a thread.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from jobs.cluster.attempts import excuse_all

FINISH_S = 12.0  # that units in hand get to be finished
EXCUSE_S = 4.0  # that it may take the store to hear that units which are dropped are not to blame
LINGER_S = 1.0  # until the report of a finished unit has left the process
EXIT_CODE = 128 + signal.SIGTERM


class _Notice:
    """The state of this process: a notice that it was given, and the units that it has in hand."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._heeding = self.given = False
        self._in_hand, self._ended = 0, 0.0

    def heed(self) -> None:
        """Takes SIGTERM from now on."""
        with self._changed:
            if self._heeding:
                return
            self._heeding = True
        heard, told = os.pipe()
        os.set_blocking(told, False)
        # Of all that Python offers, this alone runs where the signal arrives: its traceback is what wakes the thread.
        faulthandler.register(signal.SIGTERM, file=told, all_threads=False, chain=False)
        threading.Thread(target=self._end, args=(heard,), daemon=True, name="closelook-notice").start()

    @contextmanager
    def unit(self) -> Iterator[None]:
        """A unit is done inside. After a notice none begins any more: it waits for the end of the process."""
        with self._changed:
            self._changed.wait_for(lambda: not self.given)
            self._in_hand += 1
        try:
            yield
        finally:
            with self._changed:
                self._in_hand, self._ended = self._in_hand - 1, time.monotonic()
                self._changed.notify_all()

    def _end(self, heard: int) -> None:
        os.read(heard, 1)
        with self._changed:
            self.given = True
            finished = self._changed.wait_for(lambda: not self._in_hand, FINISH_S)
        if not finished:
            excusing = threading.Thread(target=excuse_all, daemon=True)
            excusing.start()
            excusing.join(EXCUSE_S)
        time.sleep(max(0.0, self._ended + LINGER_S - time.monotonic()))
        print(f"SIGTERM: its units are {'finished' if finished else 'dropped'}", file=sys.stderr, flush=True)
        os._exit(EXIT_CODE)


NOTICE = _Notice()


@contextmanager
def unit_in_hand() -> Iterator[None]:
    """A worker does a unit inside; where that is a process of Ray's, it heeds a notice."""
    ray = sys.modules.get("ray")
    if ray is not None and ray.is_initialized() and ray.get_runtime_context().worker.mode == ray.WORKER_MODE:
        NOTICE.heed()
    with NOTICE.unit():
        yield
