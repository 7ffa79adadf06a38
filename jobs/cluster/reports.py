"""The end of a unit: a worker returns a report, in which an error is a text, or its process ends after SIGTERM.

A spot node sends SIGTERM before it is taken away: units in progress are then finished or dropped, and the process ends,
within 20 seconds. Python runs signal handlers in the main thread between two bytecodes: while that thread computes a
batch or waits for others, a handler may not run for minutes. So a handler in C wakes a thread instead.
"""

from __future__ import annotations

import faulthandler
import os
import pickle
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from closelook.jobs.cluster.attempts import end_with_device, excuse_all, node_id
from closelook.jobs.plan.checkpoints import ModelUnavailable
from closelook.jobs.plan.units import Account
from closelook.jobs.secrets import without_secrets
from closelook.jobs.store import Artifact
from closelook.jobs.store.retry import StillUnavailable, one_line
from closelook.jobs.store.spent import KINDS, unit_timed

FINISH_S = 12.0  # time for units in progress to finish
EXCUSE_S = 4.0  # time to note in the store that dropped units are not to blame
LINGER_S = 1.0  # time for the report of a finished unit to leave the process
EXIT_CODE = 128 + signal.SIGTERM


@dataclass(frozen=True)
class Report:
    """The end of a unit, as its worker tells the driver."""

    unit: str
    rows: int = 0
    tokens: int = 0
    rejects: int = 0  # samples that no method explained
    explained: Mapping[str, int | None] = field(default_factory=dict)  # the number of explained samples, by method
    splits: int = 0  # batches that were cut because memory ran out
    error: str = ""  # the reason why nothing was committed
    fatal: bool = False  # True if the error concerns every unit
    accounts: Mapping[str, Account] = field(default_factory=dict)  # of the shards that were written, by path
    failed: Mapping[Artifact, str] = field(default_factory=dict)  # nodes without a shard, each with the reason
    seconds: Mapping[str, float] = field(default_factory=lambda: dict.fromkeys(KINDS, 0.0))  # by kind of work
    worker: str = field(default_factory=lambda: f"{node_id()}/{os.getpid()}")  # Ray's id of the node, and the process

    def to_table(self) -> pa.Table:
        """The report as it travels through Ray."""
        return pa.table({"report": [pickle.dumps(self)]})


def reports_in(table: pa.Table) -> list[Report]:
    """The reports in a table of `Report.to_table`."""
    return list(map(pickle.loads, table["report"].to_pylist()))


def reported(report: Report, commit: Callable[[], dict[str, Any]]) -> Report:
    """Compute and commit a unit by calling `commit`, which returns further fields of its report; returns the report.

    An error becomes a field of the report and is not raised, since an exception would end the whole pipeline. A lost
    device ends the process, and after SIGTERM no unit begins.
    """
    unit = report.unit
    with unit_in_hand(), unit_timed() as seconds:
        try:
            report = replace(report, **commit())
        except StillUnavailable as error:  # perhaps only this node cannot reach the store: the others go on
            report = replace(report, error=f"{unit}: {one_line(error)}")
        except (ModelUnavailable, OSError) as error:
            report = replace(report, error=one_line(error), fatal=True)
        except Exception as error:
            end_with_device(error)
            report = replace(report, error=f"{unit}: {type(error).__name__}: {one_line(error)}")
    return replace(report, error=without_secrets(report.error), seconds=seconds)


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
