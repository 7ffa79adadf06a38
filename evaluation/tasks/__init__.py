"""The tasks. A new task is a record in a file of this folder and a line here; packages use :func:`register`."""

from __future__ import annotations

from dataclasses import replace

from closelook.evaluation.benchmark.sources.base import AnySource
from closelook.evaluation.benchmark.sources.own import SAMPLES
from closelook.evaluation.tasks import demo, published
from closelook.evaluation.tasks.record import Task
from closelook.lrp_core.records.registry import OURS, Registry
from closelook.lrp_core.records.types import UserError

__all__ = ["SOURCES", "TASKS", "Task", "register", "task_of"]

TASKS: Registry[Task] = Registry("task")
SOURCES: Registry[AnySource] = Registry("source", SAMPLES)  # which feeds any task; the others come with the tasks


def register(task: Task, by: str = OURS) -> Task:
    """Adds a task of the package `by`, with its sources, to the tables, and returns it.

    Raises UserError if another task or source has one of these names, and if the task takes its evidence from sources
    of which one has none.
    """
    lacking = [source.name for source in task.sources if not source.brings_evidence]
    if task.evidence == "source" and lacking:
        raise UserError(f"task {task.name} of {by} takes its evidence from its source, but {lacking[0]} brings none")
    for source in task.sources:
        SOURCES.register(source, by)
    return TASKS.register(task, by)


for _task in (*published.TASKS, *demo.TASKS, published.ANSWERS):
    register(_task)


def _feeds(source: str, task: Task) -> bool:
    """True if the source is one of the task's own."""
    return any(known.name == source for known in task.sources)


def task_of(name: str, source: str) -> Task:
    """The record of the task that a config calls `name` and whose samples come from `source`.

    * A task of TASKS, with one of its own sources or a user's file: its record.
    * Another name, with a user's file: a plain record.
    * Another name, with a source of exactly one task: that task's record under the new name, without figures of the
      papers.

    Raises UserError for another name with a source that feeds several tasks, or none.
    """
    if name in TASKS and (source == SAMPLES.name or _feeds(source, TASKS[name])):
        return TASKS[name]
    if source == SAMPLES.name:
        return Task(name=name, title=name)
    tasks = [task for task in TASKS.values() if _feeds(source, task)]
    if len(tasks) != 1:
        raise UserError(f"the source {source!r} feeds the tasks {', '.join(task.name for task in tasks)}, not {name!r}")
    return replace(tasks[0], name=name, figure="", main_figure="")
