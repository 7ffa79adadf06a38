"""What the faithfulness curves of a run will cost: forwards, before equal states merge."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from evaluation.scoring.flips import Flips
from evaluation.tasks.record import Output
from jobs.commands.plan_basis import Basis, Subject
from jobs.commands.plan_speeds import Measured, speed
from jobs.config import ModelConfig, PerturbConfig, RunConfig
from jobs.methods import configured
from jobs.plan.cells import ModelPlan, requests_of
from jobs.plan.geometries import shape_of
from jobs.plan.products.curves import CURVES, subset, wanted_cells
from lrp_core.kinds import MASKED


@dataclass(frozen=True)
class CurvesCost:
    """The curves of one task of a model."""

    cells: int
    missing: int
    forwards: int  # of a sample in a state, for what is missing; equal states of several methods count each time
    seconds: float | None  # on one device; None when nothing is known


def curves_costs(basis: Basis) -> Iterator[CurvesCost]:
    """Costs by model and task."""
    config, settings = basis.config, basis.config.perturb
    if settings is None:
        return
    for subject in basis.subjects():
        model, task = subject.model, subject.task
        for dtype, cells in CURVES.expected(config, model, task, subject.methods).items():
            missing = _missing(basis, settings, subject)
            variants = _variants(config, settings, missing)
            lengths = _lengths(config, settings, subject)
            flips = _flips(settings, subject.planned, config.task(task).output, config.seed)
            states = sum((2 + variants * 2 * (one.most_states(lengths) - 1) for one in flips), np.zeros_like(lengths))
            forwards, tokens = (int(count.sum()) if variants else 0 for count in (states, states * lengths))
            yield CurvesCost(cells, len(missing), forwards, seconds_of(config, model, dtype, tokens, basis.measured))


def _flips(settings: PerturbConfig, model: ModelPlan | None, output: Output, seed: int) -> tuple[Flips, ...]:
    """The ways in which tokens go; a model out of reach, which may be of either kind, is taken for a masked one."""
    kind = MASKED if model is None else model.resolved.kind
    return settings.flips_of(kind, output, seed)


def _missing(basis: Basis, settings: PerturbConfig, subject: Subject) -> list[str]:
    """Methods without curves of the task."""
    model, task = subject.planned, subject.task
    if model is None or subject.inputs is None:
        return [name for name in subject.methods if settings.takes(task=task, method=name)]
    wanted = (one for one in wanted_cells(basis.config, settings, model) if one.artifact.task == task)
    first = model.resolved.config.dtypes_for(task)[0]
    waiting = (c.artifact for c in model.choices if c.chosen is None)
    return [
        *(one.artifact.method for one in wanted if not basis.ledger.is_done(one.artifact)),
        *(
            a.method
            for a in waiting
            if (a.task, a.dtype) == (task, first) and settings.takes(task=task, method=a.method)
        ),
    ]


def _variants(config: RunConfig, settings: PerturbConfig, methods: list[str]) -> int:
    known = configured(config)
    return sum(settings.asks(request) for name in methods for request in requests_of(config, known[name]))


def _lengths(config: RunConfig, settings: PerturbConfig, subject: Subject) -> np.ndarray:
    """Tokens of each sample that is perturbed."""
    if subject.planned is not None and subject.inputs is not None:
        return subject.inputs.lengths[subset(config, settings, subject.planned, subject.task)]
    samples, length = config.task(subject.task).published
    return np.full(min(samples, config.tasks[subject.task].limit or samples, settings.samples or samples), length)


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
