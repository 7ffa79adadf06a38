"""The driver of a run under chaos: the command line with two faults that can be switched on while it runs.

`python -m benchmarks.parts.chaos.driver run ...` does what `closelook run ...` does. The faults are controlled by files
in the folder that the environment variable CLOSELOOK_CHAOS names. The file `clock` holds a number of seconds; the clock
that closelook's modules see is wrong by so much. If there is a file `hang`, the first worker that finds it removes it
and hangs in its next batch. The clocks of the machine and of Ray are not changed.
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

from closelook.jobs.runner import rows
from closelook.jobs.runner.worker import Worker

CHAOS = "CLOSELOOK_CHAOS"
HANG_S = 600.0  # longer than any timeout of the benchmark
#: Modules of closelook that read the clock; a test compares this list with their imports.
CLOCKED = (
    "closelook.jobs.store.lock",
    "closelook.jobs.store.ledger",
    "closelook.jobs.stages.run",
    "closelook.jobs.cluster.recorder",
)


class SteppedClock:
    """Behaves like the module `time`, with a wall clock that is wrong by the number of seconds in a file."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)

    def _step_s(self) -> float:
        """The seconds by which the clock is wrong now; 0 without the file."""
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
    """A worker that looks for the file `hang`; if there is one, it removes the file and hangs in its next batch."""

    def __call__(self, table: Any) -> Any:
        flag = Path(os.environ[CHAOS]) / "hang"
        with suppress(FileNotFoundError):  # there is none, or another worker took it
            flag.rename(flag.with_name(f"hung-{time.time_ns()}"))
            hang_once()
        return super().__call__(table)


def hang_once() -> None:
    """Makes the next batch of this process hang, and only that one."""
    batches: Any = rows._Batches
    whole = batches._attempt

    def hanging(self: Any, batch: Any) -> Any:
        batches._attempt = whole
        time.sleep(HANG_S)
        return whole(self, batch)

    batches._attempt = hanging


def main() -> None:
    """Runs the command line of closelook with the clock and the worker of this module."""
    from closelook.jobs.__main__ import main as command
    from closelook.jobs.runner import driver

    clock = SteppedClock(Path(os.environ[CHAOS]) / "clock")
    for name in CLOCKED:
        module: Any = import_module(name)
        module.time = clock
    module = driver
    module.Worker = Troubled
    sys.argv[0] = "closelook"
    command()


if __name__ == "__main__":
    # Workers import this module by its name: the driver must send the class of that module, not that of __main__.
    import_module("benchmarks.parts.chaos.driver").main()
