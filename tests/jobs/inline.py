"""Stages without Ray: the units of a work go through one worker in this process, which takes a second.

Of a process, `python -m tests.jobs.inline attribute ...` is the command `closelook attribute ...` so. Where HOLD is set
to a folder, it stops before its third unit: it makes the file `holding` there and waits until there is `go`.
"""

import os
import time
from pathlib import Path
from types import SimpleNamespace

from jobs.cluster import scheduler
from jobs.cluster.pools import Slots

HOLD = "CLOSELOOK_TEST_HOLD"


def without_ray(patch=setattr) -> SimpleNamespace:
    """Let the scheduler do without, one model at a time: transformers does not load two in one process at once.

    `before_unit(index)` of what it gives is called before each unit.
    """
    hooks = SimpleNamespace(before_unit=lambda index: None)

    def pipeline(config, store, stage, work, share, workers):
        worker = work.worker(*work.arguments)
        for index, table in enumerate(work.tables()):
            hooks.before_unit(index)
            yield from worker(table).to_pylist()

    patch(scheduler, "connect", lambda config: None)
    patch(scheduler, "uses_gpu", lambda config: False)
    patch(scheduler, "cluster_slots", lambda config, on_gpu: Slots([({}, 1)]))
    patch(scheduler, "share_hosts", lambda works: False)
    patch(scheduler, "pipeline", pipeline)
    return hooks


def _hold(index: int) -> None:
    folder = os.environ.get(HOLD)
    if folder and index == 2:
        (Path(folder) / "holding").touch()
        while not (Path(folder) / "go").exists():
            time.sleep(0.05)


if __name__ == "__main__":
    from jobs.__main__ import main

    without_ray().before_unit = _hold
    main()
