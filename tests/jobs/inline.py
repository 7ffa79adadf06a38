"""Stages without Ray: the units of a work go through one worker in this process, which takes a second.

Of a process, `python -m tests.jobs.inline attribute ...` is the command `closelook attribute ...` so. Where HOLD is set
to a folder, it stops before its third unit: it makes the file `holding` there and waits until there is `go`.
"""

import os
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from closelook.jobs.cluster.executor import executed_by
from closelook.jobs.cluster.reports import reports_in
from closelook.jobs.cluster.slots import Slots

HOLD = "CLOSELOOK_TEST_HOLD"


class Inline:
    """An executor in this process, one model at a time: transformers does not load two in one process at once.

    `before_unit(index)` is called before each unit. Tests put other `places` for workers, and another `stream`.
    """

    def __init__(self, before_unit=lambda index: None, places=lambda: Slots([({}, 1)]), stream=None):
        self.before_unit, self.places, self.on_gpu = before_unit, places, False
        self.stream = stream or self._stream

    def connect(self, config):
        """There is nothing to join."""

    def uses_gpu(self, config):
        return self.on_gpu

    def slots(self, config, on_gpu):
        return self.places()

    @contextmanager
    def streaming(self, works, on_gpu):
        yield self.stream

    def _stream(self, config, stage, work, share):
        worker = work.worker(*work.arguments)
        for index, table in enumerate(work.reader()()):
            self.before_unit(index)
            yield from reports_in(worker(table))


class Unused(Inline):
    """An executor that nothing may need."""

    def connect(self, config):
        pytest.fail("it asks for workers")


@contextmanager
def without_ray():
    """Stages inside run without Ray; gives their executor."""
    executor = Inline()
    with executed_by(executor):
        yield executor


def _hold(index: int) -> None:
    folder = os.environ.get(HOLD)
    if folder and index == 2:
        (Path(folder) / "holding").touch()
        while not (Path(folder) / "go").exists():
            time.sleep(0.05)


if __name__ == "__main__":
    from closelook.jobs.__main__ import main

    with executed_by(Inline(before_unit=_hold)):
        main()
