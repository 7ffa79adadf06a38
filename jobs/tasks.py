"""Every task by name, with those that installed packages bring."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from evaluation.benchmark.sources.base import AnySource
from evaluation.tasks import SOURCES, TASKS, Task, register, task_of
from lrp_core.records import plugins
from lrp_core.records.registry import Registry
from lrp_core.records.types import UserError, nearest


@cache
def tasks() -> Registry[Task]:
    """The table. Packages are asked once a process, in workers too.

    Raises UserError, naming the package, for one whose tasks cannot be had.
    """
    plugins.load("closelook.tasks", Task, register)
    return TASKS


def sources() -> Mapping[str, AnySource]:
    """Everything that can feed a task, by the name that a config gives."""
    tasks()
    return SOURCES


def configured(name: str, source: str) -> Task:
    """The record of a config's task. Raises UserError for an unknown source, with the nearest name."""
    if source not in sources():
        raise UserError(f"unknown source {source!r}{nearest(source, sources())}")
    return task_of(name, source)
