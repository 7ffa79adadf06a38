"""The driver of a run under chaos: the command line, with a clock that steps and workers whose batches hang when told.

`python -m benchmarks.parts.chaos.driver run ...` is `closelook run ...` so. Both are told by files in the folder that
CHAOS names: `clock` holds the seconds by which the clock of closelook's modules is off, and the worker that takes a
file `hang` away hangs in its next batch. The machine's clock, and Ray's, stay as they are.
"""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from time import struct_time
from typing import Any

from jobs.runner import rows
from jobs.runner.worker import Worker

CHAOS = "CLOSELOOK_CHAOS"
HANG_S = 600.0  # longer than any patience
#: Modules of closelook that ask what time it is; a test compares the list with their imports.
CLOCKED = (
    "jobs.store.lock",
    "jobs.store.ledger",
    "jobs.stages.runs",
    "jobs.cluster.recorder",
    "jobs.plan.spool",
)


class SteppedClock:
    """The module `time`, with another wall clock."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)

    def _step_s(self) -> float:
        try:
            return float(self._file.read_text() or 0)
        except FileNotFoundError:
            return 0.0

    def gmtime(self, seconds: float | None = None) -> struct_time:
        return time.gmtime(self.time() if seconds is None else seconds)

    def time(self) -> float:
        return time.time() + self._step_s()

    def time_ns(self) -> int:
        return time.time_ns() + int(1e9 * self._step_s())


class Troubled(Worker):
    """A worker that hangs in a batch when it finds the file `hang`, which it takes away first."""

    def __call__(self, table: Any) -> Any:
        flag = Path(os.environ[CHAOS]) / "hang"
        with suppress(FileNotFoundError):  # there is none, or another worker took it
            flag.rename(flag.with_name(f"hung-{time.time_ns()}"))
            hang_once()
        return super().__call__(table)


def hang_once() -> None:
    """Let the next batch of this process hang."""
    batches: Any = rows._Batches
    whole = batches._attempt

    def hanging(self: Any, batch: Any) -> Any:
        batches._attempt = whole
        time.sleep(HANG_S)
        return whole(self, batch)

    batches._attempt = hanging


def main() -> None:
    from jobs.__main__ import main as command
    from jobs.runner import driver

    clock = SteppedClock(Path(os.environ[CHAOS]) / "clock")
    for name in CLOCKED:
        module: Any = import_module(name)
        module.time = clock
    module = driver
    module.Worker = Troubled
    sys.argv[0] = "closelook"
    command()


if __name__ == "__main__":
    # Workers import this module by its name, and the class that the driver sends must be that one.
    import_module("benchmarks.parts.chaos.driver").main()
