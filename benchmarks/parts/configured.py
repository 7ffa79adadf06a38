"""Table 8 for the models of a config, on the first prepared samples of a task, in the tokens of each model."""

from __future__ import annotations

from benchmarks.parts.harness import Bench
from jobs.bench.table_8 import measure_rows
from jobs.config import RunConfig
from jobs.plan.cells import make_plan
from jobs.plan.checkpoints import ModelUnavailable
from jobs.plan.models import open_view
from jobs.store import Store
from lrp_core.records.types import UserError

QUICK_SAMPLES = 3


def measure_config(bench: Bench) -> str:
    """Measures every model of the config that the options name, and returns the root that holds its samples.

    Raises UserError if samples are not prepared or a model cannot be opened.
    """
    chosen = bench.chosen
    config = RunConfig.load(chosen.config, chosen.root, chosen.set or ())
    settings = config.benchmark()
    samples = chosen.samples or (QUICK_SAMPLES if bench.quick else settings.samples)
    plan = make_plan(config, Store(config.root))
    problems = [*plan.failures.values()]
    for name, task in plan.unprepared:
        if task == settings.task:
            advice = f"run `closelook prepare --config {chosen.config}`"
            problems.append(f"{task} is not prepared for {name} in {config.root}: {advice}")
    models = [model for model in plan.models if settings.task in model.inputs]
    if not models:
        problems.append(f"no model of config {config.name!r} has the task {settings.task!r}")
    if problems:
        raise UserError(problems[0])
    for model in models:
        rows = model.inputs[settings.task].with_foil(samples)
        if not rows:
            lacks = f"{model.name} has no sample of {settings.task} with a foil to measure"
            raise UserError(f"{lacks}: leave the model out")
        try:
            view = open_view(model.resolved, chosen.dtype, chosen.device, config.seed)
        except ModelUnavailable as error:
            raise UserError(str(error)) from None
        measure_rows(bench, model.name, view, rows, settings.task)
        del view
    return config.root
