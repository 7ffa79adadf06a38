"""Units in the hands of a worker: the report of each, a row with its error in words, and the end that SIGTERM brings.

A spot node sends SIGTERM as its notice: units in hand are finished or dropped, and the process ends, within 20 seconds.
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
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

from jobs.cluster.attempts import end_with_device, excuse_all, node_id
from jobs.plan.checkpoints import ModelUnavailable
from jobs.secrets import without_secrets
from jobs.store.retry import StillUnavailable, one_line
from jobs.store.spent import KINDS, unit_timed

#: `error` is empty, or why nothing was committed; `fatal` errors concern every unit.
REPORT = pa.schema(
    [
        ("unit", pa.string()),
        ("rows", pa.int64()),
        ("tokens", pa.int64()),
        ("rejects", pa.int64()),  # samples that no method explained
        ("explained", pa.string()),  # JSON, the number of samples that each method explained
        ("splits", pa.int64()),
        ("wall_s", pa.float64()),
        *((f"{kind}_s", pa.float64()) for kind in KINDS),
        ("worker", pa.string()),  # Ray's node and the process
        ("error", pa.string()),
        ("fatal", pa.bool_()),
        ("result", pa.string()),  # JSON, what else the stage makes of the unit; null for nothing
        ("accounts", pa.string()),  # JSON, by path of a shard: how many samples it explains, and its rejects
    ]
)


def reported(unit: str, rows: int, tokens: int, commit: Callable[[], dict[str, Any]]) -> pa.Table:
    """Commit the unit of so many rows and tokens; its report, in which the keys that `commit` returns replace defaults.

    Errors stand in the report and are never raised: an exception would end the whole data set. A lost device ends the
    process, and after SIGTERM no unit begins.
    """
    with unit_in_hand(), unit_timed() as seconds:
        report = _done(unit, rows, tokens, commit)
    report["error"] = without_secrets(report["error"])
    return _table(report, seconds)


def _done(unit: str, rows: int, tokens: int, commit: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    report = _nothing(unit) | {"rows": rows, "tokens": tokens}
    try:
        report |= commit()
    except StillUnavailable as error:  # of this node, perhaps: the others go on
        report |= {"error": f"{unit}: {one_line(error)}"}
    except (ModelUnavailable, OSError) as error:
        report |= {"error": one_line(error), "fatal": True}
    except Exception as error:
        end_with_device(error)
        report |= {"error": f"{unit}: {type(error).__name__}: {one_line(error)}"}
    return report


def left_out(unit: str) -> pa.Table:
    """The report of a unit that is not begun because the run is to stop."""
    return _table(_nothing(unit), dict.fromkeys(KINDS, 0.0))


def _table(report: Mapping[str, Any], seconds: Mapping[str, float]) -> pa.Table:
    """The report with the seconds spent on the unit, by kind, and the worker's name."""
    spent = {"wall_s": sum(seconds.values())} | {f"{kind}_s": seconds[kind] for kind in KINDS}
    return pa.Table.from_pylist([{**report, **spent, "worker": f"{node_id()}/{os.getpid()}"}], schema=REPORT)


def _nothing(unit: str) -> dict[str, Any]:
    return {
        "unit": unit,
        "rows": 0,
        "tokens": 0,
        "rejects": 0,
        "explained": None,
        "splits": 0,
        "error": "",
        "fatal": False,
        "result": None,
        "accounts": None,
    }


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
        read_end, write_end = os.pipe()
        os.set_blocking(write_end, False)
        # Of all that Python offers, this alone runs where the signal arrives: its traceback is what wakes the thread.
        faulthandler.register(signal.SIGTERM, file=write_end, all_threads=False, chain=False)
        threading.Thread(target=self._end, args=(read_end,), daemon=True, name="closelook-notice").start()

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
