"""The tasks of a model: those that ask for the kind of prediction that its head makes."""

from __future__ import annotations

from collections.abc import Mapping

from closelook.evaluation.tasks.record import Output
from closelook.jobs.config import RunConfig
from closelook.jobs.plan.models import ResolvedModel
from closelook.lrp_core.records.types import UserError

_PREDICTION = {"token": "words", "label": "labels", "score": "a score"}


def tasks_of(config: RunConfig, resolved: ResolvedModel) -> list[str]:
    """The run's tasks that the model takes.

    A model that names no tasks takes those that ask for what its head predicts. Raises UserError for a named task that
    asks for something else, and for labels that the model does not have.
    """
    taken = []
    model, labels, is_of_images = resolved.config, resolved.labels, resolved.kind.images
    for name in config.tasks_for(model):
        task = config.task(name)
        if task.explains_answers and resolved.kind.slot:
            if model.tasks is not None:
                raise UserError(
                    f"model {model.name} fills in masked words, and task {name} asks for whole answers: leave "
                    "it out of the model's `tasks`, or give another model"
                )
        elif (task.output, task.image) == (resolved.output, is_of_images):
            if any(resolved.label_id(label) is None for label in task.labels):
                raise UserError(
                    f"the labels of task {name} ({', '.join(task.labels)}) are not those of model {model.name} "
                    f"({', '.join(labels)}): set the model's `classes` to the names that the task uses, in this "
                    "order, or leave the task out of its `tasks`"
                )
            taken.append(name)
        elif model.tasks is not None:
            predicted = _prediction(resolved.output, is_of_images)
            raise UserError(
                f"model {model.name} predicts {predicted}, and task {name} asks for "
                f"{_prediction(task.output, task.image)}: leave it out of the model's `tasks`, or give another model"
            )
    return taken


def _prediction(output: Output, is_of_images: bool) -> str:
    """The kind of prediction, in words, such as "labels of images"."""
    return _PREDICTION[output] + (" of images" if is_of_images else "")


def check_taken(config: RunConfig, taken: Mapping[str, list[str]]) -> None:
    """Raises UserError for a task that no model takes although some might have.

    `taken` has the tasks that each model takes, by the model's name.
    """
    for name in config.tasks:
        with_task = [model.name for model in config.models if name in config.tasks_for(model)]
        if with_task and not any(name in taken[model] for model in with_task):
            task = config.task(name)
            asks = _prediction(task.output, task.image)
            raise UserError(f"task {name} asks for {asks}, which no model of the run predicts: add one that does")
