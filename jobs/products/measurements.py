"""Table 8 of Close Look measured on the run's own models; keys cover the model and its samples."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from jobs.config import BenchConfig, ModelConfig, RunConfig
from jobs.plan.node import Node, Plan, Run
from jobs.products.record import Product
from jobs.store import Artifact

VERSION = 1  # raised when the measurement changes
DTYPE = "float32"  # Close Look 5.4


@dataclass(frozen=True, eq=False, kw_only=True)
class Measurement(Node):
    """The measurement of one model, on these rows of its views."""

    rows: list[dict[str, Any]]


def measurements_of(settings: BenchConfig | None, plan: Plan) -> Iterator[Measurement]:
    """Yield the measurement of each model that has samples of the task with a foil; none without settings."""
    for model in plan.models:
        if settings is None or settings.task not in model.inputs:
            continue
        rows = model.inputs[settings.task].with_foil(settings.samples)
        resolved, task = model.resolved, settings.task
        if rows:
            yield Measurement(
                artifact=Artifact("bench", model.name, task, DTYPE),
                key_fields={
                    "version": VERSION,
                    "model": resolved.identity,
                    "attention": resolved.config.attn,
                    "task": task,
                    "samples": rows,
                },
                samples=len(rows),
                model=model,
                rows=rows,
            )


def _nodes(run: Run) -> Iterator[Node]:
    """The measurements of the run's models."""
    return measurements_of(run.config.bench, run.plan)


def _expected(config: RunConfig, model: ModelConfig, task: str, methods: list[str]) -> dict[str, int]:
    """One measurement for the task of the settings, in DTYPE."""
    return {DTYPE: 1} if config.bench and task == config.bench.task else {}


BENCH = Product(
    name="bench",
    title="benchmarks",
    stage="bench",
    nodes=_nodes,
    expected=_expected,
    make="jobs.stages.bench:bench",
)
