"""Measurements of table 8 of Close Look on the run's own models, one model after another.

Their keys cover the model and the samples, so that a run measures what is missing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from closelook.evaluation.schema import BENCH as SCHEMA
from closelook.jobs.plan.node import Node, Part, Run
from closelook.jobs.products.record import Made, Opened, Product, Row, Unit
from closelook.jobs.store import Artifact

if TYPE_CHECKING:
    from closelook.jobs.bench.table_8 import Seconds

VERSION = 2  # raised when the measurement changes
DTYPE = "float32"  # Close Look 5.4
BATCH = 50  # samples that are timed between two looks at the clock of hanging batches


@dataclass(frozen=True, eq=False, kw_only=True)
class Measurement(Node):
    """The measurement of one model, on these rows of its views."""

    rows: list[dict[str, Any]]
    command: str


@dataclass(frozen=True)
class Timed:
    """The seconds of some samples, by method: of the backward pass with aggregation, and of the forward pass."""

    samples: Sequence[str]
    backward: Seconds
    forward: Seconds


def nodes(run: Run) -> Iterator[Measurement]:
    """Yield the measurement of each model that has samples of the task with a foil; none without settings."""
    settings = run.config.bench
    if settings is None:
        return
    task = settings.task
    for model in run.plan.models:
        rows = model.inputs[task].with_foil(settings.samples) if task in model.inputs else []
        if rows:
            yield Measurement(
                artifact=Artifact("bench", model.name, task, DTYPE),
                key_fields={"version": VERSION, **model.resolved.key_fields, "task": task, "samples": rows},
                samples=len(rows),
                model=model,
                rows=rows,
                command=f"closelook bench --config {run.config.name}",
            )


def units(run: Run, nodes: Sequence[Measurement]) -> Iterator[Unit]:
    """Yield a unit for each model."""
    for node in nodes:
        tokens = sum(len(row["input_ids"]) for row in node.rows)
        cuts = tuple(range(0, len(node.rows), BATCH))
        yield Unit("table_8", (Part(node, "table_8"),), rows=node.rows, cuts=cuts, tokens=tokens)


def compute(opened: Opened, parts: Sequence[Part], rows: Sequence[Row]) -> Mapping[Part, Timed]:
    """The seconds of every sample."""
    from closelook.jobs.bench.table_8 import measure
    from closelook.lrp_core import Batch

    (part,) = parts
    batches = [Batch.collate([row], pad_id=0).to(opened.view.device) for row in rows]
    return {part: Timed([row["sample_id"] for row in rows], *measure(opened.view, batches))}


def combine(opened: Opened, part: Part, values: Sequence[Timed]) -> Made:
    """The medians over all samples, as rows of the store's schema of benchmarks."""
    from closelook.jobs.bench.record import Results, device_name
    from closelook.jobs.bench.storage import as_table
    from closelook.jobs.bench.table_8 import METHODS, add_table_8

    node: Measurement = part.node
    backward = {method: [second for value in values for second in value.backward[method]] for method in METHODS}
    forward = {method: [second for value in values for second in value.forward[method]] for method in METHODS}
    results = Results("lrp", device_name(str(opened.view.device)), node.command)
    subject = results.about(model=node.artifact.model)
    add_table_8(subject, opened.view, backward, forward, task=node.artifact.task)
    table = as_table(results.result())
    return Made(table, schema=table.schema)


def _entries(run: Run, node: Measurement) -> Mapping[str, Any]:
    """The number of samples, as an entry of the manifest."""
    return {"samples": node.samples}


BENCH = Product(
    name="bench",
    title="benchmarks",
    stage="bench",
    nodes=nodes,
    schema=lambda dtype: SCHEMA,
    units=units,
    compute=compute,
    combine=combine,
    entries=_entries,
)
