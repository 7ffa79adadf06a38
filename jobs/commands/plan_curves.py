"""What the faithfulness curves of a run will cost: forwards, before equal states merge."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from evaluation.scoring.flips import Flips
from evaluation.tasks.record import Output
from jobs.commands.plan_speeds import Measured, speed
from jobs.config import ModelConfig, PerturbConfig, RunConfig
from jobs.methods import configured
from jobs.plan.cells import ModelPlan, Plan, requests_of
from jobs.plan.geometries import shape_of
from jobs.plan.products.curves import CURVES, subset, wanted_cells
from jobs.store import Ledger
from lrp_core.kinds import MASKED


@dataclass(frozen=True)
class CurvesCost:
    """The curves of one task of a model."""

    cells: int
    missing: int
    forwards: int  # of a sample in a state, for what is missing; equal states of several methods count each time
    seconds: float | None  # on one device; None when nothing is known


def curves_costs(
    config: RunConfig,
    ledger: Ledger,
    plan: Plan,
    measured: Measured,
    named: Mapping[str, list[str]],
) -> Iterator[CurvesCost]:
    """By model and task. `measured` are seconds per token by (model, dtype, pass), `named` the methods by model."""
    settings = config.perturb
    if settings is None:
        return
    by_name = {model.name: model for model in plan.models}
    for model in config.models:
        for task in plan.tasks_of(config, model):
            expected = CURVES.expected(config, model, task, named[model.name])
            for dtype, cells in expected.items():
                missing = _missing(config, settings, ledger, by_name.get(model.name), task, named[model.name])
                variants = _variants(config, settings, missing)
                lengths = _lengths(config, settings, by_name.get(model.name), task)
                flips = _flips(settings, by_name.get(model.name), config.task(task).output, config.seed)
                states = sum(
                    (2 + variants * 2 * (one.most_states(lengths) - 1) for one in flips), np.zeros_like(lengths)
                )
                forwards, tokens = (int(count.sum()) if variants else 0 for count in (states, states * lengths))
                yield CurvesCost(cells, len(missing), forwards, seconds_of(config, model, dtype, tokens, measured))


def _flips(settings: PerturbConfig, model: ModelPlan | None, output: Output, seed: int) -> tuple[Flips, ...]:
    """The ways in which tokens go; a model out of reach, which may be of either kind, is taken for a masked one."""
    kind = MASKED if model is None else model.resolved.kind
    return settings.flips_of(kind, output, seed)


def _missing(
    config: RunConfig, settings: PerturbConfig, ledger: Ledger, model: ModelPlan | None, task: str, named: list[str]
) -> list[str]:
    """Methods without curves of the task."""
    if model is None or task not in model.inputs:
        return [name for name in named if settings.takes(task=task, method=name)]
    wanted = (one for one in wanted_cells(config, settings, model) if one.artifact.task == task)
    first = model.resolved.config.dtypes_for(task)[0]
    waiting = (c.artifact for c in model.choices if c.chosen is None)
    return [
        *(one.artifact.method for one in wanted if not ledger.is_done(one.artifact)),
        *(
            a.method
            for a in waiting
            if (a.task, a.dtype) == (task, first) and settings.takes(task=task, method=a.method)
        ),
    ]


def _variants(config: RunConfig, settings: PerturbConfig, methods: list[str]) -> int:
    known = configured(config)
    return sum(settings.asks(request) for name in methods for request in requests_of(config, known[name]))


def _lengths(config: RunConfig, settings: PerturbConfig, model: ModelPlan | None, task: str) -> np.ndarray:
    """Tokens of each sample that is perturbed."""
    if model is not None and task in model.inputs:
        return model.inputs[task].lengths[subset(config, settings, model, task)]
    samples, length = config.task(task).published
    return np.full(min(samples, config.tasks[task].limit or samples, settings.samples or samples), length)


def seconds_of(
    config: RunConfig,
    model: ModelConfig,
    dtype: str,
    tokens: int,
    measured: Measured,
) -> float | None:
    """Seconds of forwards of `tokens`: by the cheapest measured pass, which is no less, else by the geometry."""
    rates = [rate for (name, precision, _), rate in measured.items() if (name, precision) == (model.name, dtype)]
    geometry = shape_of(model)
    if rates:
        return tokens * min(rates)
    flops = speed(config, model, dtype)
    return None if geometry is None or flops is None else 2.0 * geometry.block_parameters * tokens / flops
