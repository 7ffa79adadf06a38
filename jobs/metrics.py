"""Every metric by name, with those that installed packages bring."""

from __future__ import annotations

from functools import cache

from evaluation.scoring.metrics import METRICS, VERSION, Metric, applicable
from evaluation.tasks import Task
from lrp_core import plugins
from lrp_core.registry import Registry


@cache
def metrics() -> Registry[Metric]:
    """The table. Packages are asked once a process, in workers too.

    Raises UserError, naming the package, for one whose metrics cannot be had.
    """
    plugins.load("closelook.metrics", Metric, METRICS.register)
    return METRICS


def scored_by(task: Task) -> list[list[str | int]]:
    """What decides the numbers that scores of the task are: name and version of every metric that applies.

    Scores that something else decided are stale.
    """
    metrics()
    found: list[list[str | int]] = [["", VERSION]]
    return found + [[name, declared.version] for name, declared in applicable(task).items()]
