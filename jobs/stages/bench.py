"""Bench: table 8 of the run's own models, where they run, one Ray task a model.

Models are measured one after the other, so that nothing of ours disturbs the timing. A model's manifest is keyed by
all that decides what is measured: a run measures what is missing, and what another key has measured is removed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from jobs.bench.record import Results, device_name
from jobs.bench.storage import write
from jobs.bench.table_8 import measure_rows
from jobs.cluster.pools import Share, own_device, placement
from jobs.cluster.reports import reported
from jobs.cluster.scheduler import run_all
from jobs.cluster.work import Report, Work
from jobs.config import RunConfig
from jobs.plan.cells import make_plan
from jobs.plan.models import ResolvedModel, open_view
from jobs.products.measurements import DTYPE, Measurement, measurements_of
from jobs.stages.record import StageSummary
from jobs.store import Ledger, Store


def bench(config: RunConfig, store: Store) -> StageSummary:
    """Measure every model of the benchmark's task that is not measured yet."""
    settings = config.benchmark()
    plan, ledger = make_plan(config, store), Ledger(store)
    wanted = list(measurements_of(settings, plan))
    todo = [measurement for measurement in wanted if not ledger.is_done(measurement.artifact)]
    failures = [*plan.failures.values()]
    failures += [f"{name}: {task} is not prepared" for name, task in plan.unprepared if task == settings.task]
    works = [_work(config, ledger, measurement) for measurement in todo]
    failures += run_all(config, store, works, stage="bench", unit="samples", most_at_once=1, stream=in_a_task)
    measured = sum(ledger.is_done(measurement.artifact) for measurement in todo)
    lines = [f"{measured} models measured, {len(wanted) - len(todo)} were up to date"]
    without = {model.name for model in plan.models if settings.task in model.inputs} - {
        one.artifact.model for one in wanted
    }
    lines += [f"{name} has no sample of {settings.task} with a foil to measure" for name in sorted(without)]
    return StageSummary("bench", measured, len(wanted) - len(todo), tuple(failures), tuple(lines))


def _work(config: RunConfig, ledger: Ledger, measurement: Measurement) -> Work:
    resolved, artifact = measurement.plan.resolved, measurement.artifact

    def complete(report: Report) -> None:
        if not report["error"]:
            _complete(config, ledger, measurement, json.loads(report["result"]))

    return Work(
        name=resolved.config.name,
        model=resolved.config,
        blocks=[measurement.rows],
        worker=measure,
        arguments=(ledger.store, resolved, artifact.task, config.seed, f"closelook bench --config {config.name}"),
        size=len(measurement.rows),
        dtypes=(DTYPE,),
        on_report=complete,
    )


def in_a_task(config: RunConfig, store: Store, stage: str, work: Work, share: Share, workers: int) -> Iterator[Report]:
    """A Ray task for the only unit: unlike a pipeline's, it may take as long as it likes."""
    import ray

    (rows,) = work.blocks
    task = ray.remote(work.worker).options(
        name=f"{stage}-{work.name}",
        max_retries=config.max_attempts - 1,
        **placement(share),
    )
    yield from ray.get(task.remote(*work.arguments, rows)).to_pylist()


def measure(
    store: Store, resolved: ResolvedModel, task: str, seed: int, command: str, rows: Sequence[dict[str, Any]]
) -> pa.Table:
    """Measures a model on its device, in a Ray worker, and writes a file to the store; its report."""

    def written() -> dict[str, Any]:
        device = own_device()
        view = open_view(resolved, DTYPE, device, seed)
        measured = Results("lrp", device_name(device), command)
        measure_rows(measured, resolved.config.name, view, rows, task)
        return {"result": json.dumps(write(measured.result(), store))}

    tokens = sum(len(row["input_ids"]) for row in rows)
    return reported(f"bench.lrp.{resolved.config.name}", len(rows), tokens, written)


def _complete(config: RunConfig, ledger: Ledger, measurement: Measurement, file: str) -> None:
    resolved = measurement.plan.resolved
    record = {
        "shards": [file.removeprefix(f"{measurement.artifact.folder}/")],
        "samples": len(measurement.rows),
        "model": {"identity": resolved.identity, "id": resolved.config.id},
    }
    ledger.commit(measurement.artifact, record, config=config.model_dump(mode="json"))
