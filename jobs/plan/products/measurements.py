"""Table 8 measured on the run's own models, keyed by the model and the samples it is measured on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from jobs.plan.products.record import Product, Wanted
from jobs.store import Artifact, Ledger, key_of

if TYPE_CHECKING:
    from jobs.config import BenchConfig, RunConfig
    from jobs.plan.cells import ModelPlan, Plan

VERSION = 1  # raised when something else is measured
DTYPE = "float32"  # Close Look 5.4


@dataclass(frozen=True)
class Measurement:
    """What is measured of one model."""

    plan: ModelPlan
    rows: list[dict[str, Any]]
    artifact: Artifact


def wanted_measurements(settings: BenchConfig | None, plan: Plan) -> Iterator[Measurement]:
    """One of each model that has samples of the task; none without settings."""
    for model in plan.models:
        if settings is not None and settings.task in model.inputs:
            rows = model.inputs[settings.task].with_foil(settings.samples)
            resolved, task = model.resolved, settings.task
            key = key_of(
                version=VERSION, model=resolved.identity, attention=resolved.config.attn, task=task, samples=rows
            )
            if rows:
                yield Measurement(model, rows, Artifact("bench", model.name, task, DTYPE, key=key))


def _wanted(config: RunConfig, plan: Plan, ledger: Ledger) -> Iterator[Wanted]:
    return (Wanted(one.artifact, len(one.rows)) for one in wanted_measurements(config.bench, plan))


BENCH = Product(
    name="bench",
    heading="bench",
    plural="benchmarks",
    stage="bench",
    wanted=_wanted,
    expected=lambda config, model, task, _: {DTYPE: 1} if config.bench and task == config.bench.task else {},
    outdated="measurements of another model or of other samples",
)
