"""Table 8 on the models of a config: the first prepared samples of a task, as the model's own tokenizer sees them."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from jobs.bench.harness import Bench
from jobs.bench.samples import alone
from jobs.bench.table_8 import table_8
from jobs.config import RunConfig
from jobs.plan.cells import make_plan
from jobs.plan.hub import ModelUnavailable
from jobs.plan.models import open_view
from jobs.store import Store
from lrp_core import ModelView
from lrp_core.types import UserError

QUICK_SAMPLES = 3


def measure_config(bench: Bench, chosen: argparse.Namespace) -> str:
    """Adds every model of `chosen.config`; returns the root that holds its samples.

    Raises UserError when the samples are not prepared or a model is out of reach.
    """
    config = RunConfig.load(chosen.config, chosen.root, chosen.set or ())
    settings = config.benchmark()
    samples = chosen.samples or (QUICK_SAMPLES if chosen.quick else settings.samples)
    plan = make_plan(config, Store(config.root))
    problems = [*plan.failures.values()]
    problems += [
        f"{task} is not prepared for {name} in {config.root}: run `closelook prepare --config {chosen.config}`"
        for name, task in plan.unprepared
        if task == settings.task
    ]
    if problems:
        raise UserError(problems[0])
    models = [model for model in plan.models if settings.task in model.inputs]
    if not models:
        raise UserError(f"no model of config {config.name!r} has the task {settings.task!r}")
    for model in models:
        rows = model.inputs[settings.task].with_foil(samples)
        if not rows:
            raise UserError(
                f"{model.name} has no sample of {settings.task} with a foil to measure: leave the model out"
            )
        try:
            view = open_view(model.resolved, chosen.dtype, chosen.device, config.seed)
        except ModelUnavailable as error:
            raise UserError(str(error)) from None
        measure_rows(bench, model.name, view, rows, settings.task)
        del view
    return config.root


def measure_rows(bench: Bench, name: str, view: ModelView, rows: Sequence[dict[str, Any]], task: str) -> None:
    """Table 8 of one model on rows of a tokenised view."""
    table_8(bench, {"model": name}, view, [alone(row).to(view.device) for row in rows], task=task)
