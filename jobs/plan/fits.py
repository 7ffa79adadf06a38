"""Which tasks of a run a model takes: those that ask for what its head puts out, with labels that it has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from jobs.config import RunConfig
from jobs.plan.models import ResolvedModel
from lrp_core.types import UserError

if TYPE_CHECKING:
    from evaluation.tasks import Task

_PUTS_OUT = {"token": "words", "label": "labels", "score": "a score"}
_OF_WHAT = {False: "", True: " of images"}


def tasks_of(config: RunConfig, resolved: ResolvedModel) -> list[str]:
    """The run's tasks that the model takes.

    A model that names no tasks takes those that ask for what its head puts out. Raises UserError for a task that asks
    for something else and is named, and for labels that the model does not have.
    """
    taken = []
    for name in config.tasks_for(resolved.config):
        task = config.task(name)
        if (task.output, task.image) != (resolved.output, resolved.kind.images):
            if resolved.config.tasks is not None:
                predicts = _PUTS_OUT[resolved.output] + _OF_WHAT[resolved.kind.images]
                raise UserError(
                    f"model {resolved.config.name} predicts {predicts}, and task {name} asks for {_asks_for(task)}: "
                    "leave it out of the model's `tasks`, or give another model"
                )
            continue
        _check_labels(resolved, name, task)
        taken.append(name)
    return taken


def _asks_for(task: Task) -> str:
    return _PUTS_OUT[task.output] + _OF_WHAT[task.image]


def check_taken(config: RunConfig, taken: Mapping[str, list[str]]) -> None:
    """Raises UserError for a task that every model leaves out, where any of them might have taken it.

    `taken` are the tasks that each model takes, by name.
    """
    for name in config.tasks:
        asked = [model for model in config.models if name in config.tasks_for(model)]
        if asked and not any(name in taken[model.name] for model in asked):
            wanted = _asks_for(config.task(name))
            raise UserError(f"task {name} asks for {wanted}, which no model of the run predicts: add one that does")


def _check_labels(resolved: ResolvedModel, name: str, task: Task) -> None:
    lacking = [label for label in task.labels if resolved.label_id(label) is None]
    if lacking:
        raise UserError(
            f"the labels of task {name} ({', '.join(task.labels)}) are not those of model {resolved.config.name} "
            f"({', '.join(resolved.labels)}): say as the model's `classes` what its labels mean, in their order, or "
            f"leave the task out of its `tasks`"
        )
