"""Every task by name, with those that installed packages bring."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from closelook.evaluation.benchmark.sources.base import AnySource
from closelook.evaluation.tasks import SOURCES, TASKS, Task, register, task_of
from closelook.lrp_core.records.registry import Registry, load
from closelook.lrp_core.records.types import UserError, nearest


@cache
def tasks() -> Registry[Task]:
    """All tasks by name. The first call in a process loads those of installed packages.

    Raises UserError, naming the package, if a package's tasks cannot be loaded.
    """
    load("closelook.tasks", Task, register)
    return TASKS


def sources() -> Mapping[str, AnySource]:
    """All sources of samples, by the name that a config gives as `source`."""
    tasks()
    return SOURCES


def configured(name: str, source: str) -> Task:
    """The record of the task `name` with samples from `source`. Raises UserError if no source has that name."""
    if source not in sources():
        raise UserError(f"unknown source {source!r}{nearest(source, sources())}")
    return task_of(name, source)
