"""The end of a unit: a worker returns a report, in which an error is a text, or its process ends after SIGTERM.

A spot node sends SIGTERM before it is taken away: units in progress are then finished or dropped, and the process ends,
within 20 seconds. Python runs signal handlers in the main thread between two bytecodes: while that thread computes a
batch or waits for others, a handler may not run for minutes. So a handler in C wakes a thread instead.
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

from closelook.jobs.cluster.attempts import end_with_device, excuse_all, node_id
from closelook.jobs.plan.checkpoints import ModelUnavailable
from closelook.jobs.secrets import without_secrets
from closelook.jobs.store.retry import StillUnavailable, one_line
from closelook.jobs.store.spent import KINDS, unit_timed

FINISH_S = 12.0  # time for units in progress to finish
EXCUSE_S = 4.0  # time to note in the store that dropped units are not to blame
LINGER_S = 1.0  # time for the report of a finished unit to leave the process
EXIT_CODE = 128 + signal.SIGTERM
#: The report of a unit. `error` is empty, or the reason why nothing was committed; `fatal` errors concern every unit.
REPORT = pa.schema(
    [
        ("unit", pa.string()),
        ("rows", pa.int64()),
        ("tokens", pa.int64()),
        ("rejects", pa.int64()),  # samples that no method explained
        ("explained", pa.string()),  # JSON: the number of explained samples by method
        ("splits", pa.int64()),
        ("wall_s", pa.float64()),
        *((f"{kind}_s", pa.float64()) for kind in KINDS),
        ("worker", pa.string()),  # Ray's id of the node, and the process id
        ("error", pa.string()),
        ("fatal", pa.bool_()),
        ("result", pa.string()),  # JSON: a further result that the stage needs of the unit; null if there is none
        ("accounts", pa.string()),  # JSON: by path of a shard, how many samples it explains, and its rejects
    ]
)

_NOTHING: dict[str, Any] = {  # the report of a unit of which nothing was done
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


def reported(unit: str, rows: int, tokens: int, commit: Callable[[], dict[str, Any]]) -> pa.Table:
    """Compute and commit a unit by calling `commit`, which returns fields of the report; returns the whole report.

    The report has this number of `rows` and `tokens` unless `commit` returns others. An error becomes a field of the
    report and is not raised, since an exception would end the whole pipeline. A lost device ends the process, and after
    SIGTERM no unit begins.
    """
    report = _NOTHING | {"unit": unit, "rows": rows, "tokens": tokens}
    with unit_in_hand(), unit_timed() as seconds:
        try:
            report |= commit()
        except StillUnavailable as error:  # perhaps only this node cannot reach the store: the others go on
            report |= {"error": f"{unit}: {one_line(error)}"}
        except (ModelUnavailable, OSError) as error:
            report |= {"error": one_line(error), "fatal": True}
        except Exception as error:
            end_with_device(error)
            report |= {"error": f"{unit}: {type(error).__name__}: {one_line(error)}"}
    report["error"] = without_secrets(report["error"])
    return _table(report, seconds)


def left_out(unit: str) -> pa.Table:
    """The report of a unit that was not begun, because the run is stopping."""
    return _table(_NOTHING | {"unit": unit}, dict.fromkeys(KINDS, 0.0))


def _table(report: Mapping[str, Any], seconds: Mapping[str, float]) -> pa.Table:
    """The report as a table of one row, with the seconds spent on the unit by kind, and the worker."""
    spent = {"wall_s": sum(seconds.values())} | {f"{kind}_s": seconds[kind] for kind in KINDS}
    return pa.Table.from_pylist([{**report, **spent, "worker": f"{node_id()}/{os.getpid()}"}], schema=REPORT)


class _Notice:
    """Ends this process after SIGTERM (the notice), once its units in progress are finished or time is up."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._heeding = self.given = False
        self._in_hand, self._ended = 0, 0.0

    def heed(self) -> None:
        """Handle SIGTERM from now on; later calls do nothing."""
        with self._changed:
            if self._heeding:
                return
            self._heeding = True
        read_end, write_end = os.pipe()
        os.set_blocking(write_end, False)
        # faulthandler is the only handler in C that Python offers: the traceback that it writes into the pipe wakes the
        # thread that reads from it.
        faulthandler.register(signal.SIGTERM, file=write_end, all_threads=False, chain=False)
        threading.Thread(target=self._end, args=(read_end,), daemon=True, name="closelook-notice").start()

    @contextmanager
    def unit(self) -> Iterator[None]:
        """Do a unit inside the block. After a notice, this waits for ever: the process is about to end."""
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
        """Wait for a notice on the pipe `heard`, then let units finish, and end the process."""
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
    """Do a unit of a worker inside the block. If this is a worker process of Ray, it handles SIGTERM from now on."""
    ray = sys.modules.get("ray")
    if ray is not None and ray.is_initialized() and ray.get_runtime_context().worker.mode == ray.WORKER_MODE:
        NOTICE.heed()
    with NOTICE.unit():
        yield
