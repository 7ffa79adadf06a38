"""Whether there is what a configuration asks for: sources, metrics, methods, model families. No torch here."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from jobs.config.file import ConfigError
from jobs.methods import METHODS, bound
from jobs.tasks import sources
from lrp_core.explained import needs_foil
from lrp_core.families import FAMILIES, describing
from lrp_core.types import UserError

if TYPE_CHECKING:
    from jobs.config.run import ModelConfig, RunConfig


def check(config: RunConfig) -> None:
    """Raises ConfigError naming every key that asks for what neither closelook nor an installed package has.

    Raises UserError, naming the package, where the records of one cannot be had.
    """
    from evaluation.scoring.metrics import METRICS  # with numpy, which a mistyped key need not wait for

    for table in (METHODS, sources(), METRICS, FAMILIES):
        len(table)  # packages are asked now, so that what is wrong with them is no key's fault
    problems = []
    for key, look_up in _look_ups(config):
        try:
            look_up()
        except UserError as error:
            problems.append(f"config key {key!r}: {error}")
    if problems:
        raise ConfigError("; ".join(problems))


def _look_ups(config: RunConfig) -> Iterator[tuple[str, Callable[[], object]]]:
    """(config key, what raises UserError if there is nothing of the kind)."""
    for task in config.tasks:
        yield f"tasks.{task}.source", partial(_scored, config, task)
        yield f"tasks.{task}", partial(_read, config, task)
    for model in config.models:
        yield f"models.{model.name}.id", partial(_described, model)
    for entry in config.methods:
        yield "methods", partial(bound, entry)
    for model in config.models:
        for entry in config.methods_of(model):
            if entry not in config.methods:
                yield f"models.{model.name}.methods", partial(bound, entry)


def _scored(config: RunConfig, task: str) -> None:
    from evaluation.scoring.metrics import applicable

    applicable(config.task(task))


def _read(config: RunConfig, task: str) -> None:
    """Whether what is asked of the task's texts can be asked; a task that does not exist has had its turn."""
    try:
        record = config.task(task)
    except UserError:
        return
    if record.beginning is None and (config.tasks[task].tokens or config.tasks[task].explains):
        raise UserError("its texts have a slot: leave out `tokens` and `explains`")
    if record.beginning is not None and all(map(needs_foil, config.explanations)):
        raise UserError("it has no foils to contrast with: add 'target' to `explanations`")


def _described(model: ModelConfig) -> None:
    """Of a folder, by its config.json alone; other models, and what is wrong with a folder, wait for their turn."""
    try:
        described = json.loads((Path(model.id).expanduser() / "config.json").read_bytes())
    except (OSError, ValueError):
        return
    if isinstance(described, dict) and isinstance(described.get("model_type"), str):
        describing(described["model_type"])
