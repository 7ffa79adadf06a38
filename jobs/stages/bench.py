"""The stage `bench`: table 8 of Close Look measured on the run's models, in one Ray task for each model.

Models are measured one after the other, so that they do not disturb each other's timing. Keys cover all that decides
what is measured: a run measures what is missing, and replaces measurements of another key.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import pyarrow as pa

from closelook.jobs.bench.record import Results, device_name
from closelook.jobs.bench.storage import write
from closelook.jobs.bench.table_8 import measure_rows
from closelook.jobs.cluster.pools import Report, Work, own_device
from closelook.jobs.cluster.reports import reported
from closelook.jobs.cluster.scheduler import run_all
from closelook.jobs.config import RunConfig
from closelook.jobs.plan.cells import make_plan
from closelook.jobs.plan.models import ResolvedModel, open_view
from closelook.jobs.products.whole import BENCH_DTYPE, Measurement, measurements_of
from closelook.jobs.runner.closing import model_entry
from closelook.jobs.stages.record import StageSummary
from closelook.jobs.store import Ledger, Store, Written


def bench(config: RunConfig, store: Store) -> StageSummary:
    """Measure every model that has samples of the benchmark's task and no measurement yet."""
    settings = config.benchmark()
    plan, ledger = make_plan(config, store), Ledger(store)
    planned = list(measurements_of(settings, plan))
    todo = [measurement for measurement in planned if not ledger.is_done(measurement.artifact)]
    failures = [*plan.failures.values()]
    failures += [f"{name}: {task} is not prepared" for name, task in plan.unprepared if task == settings.task]
    works = [_work(config, ledger, measurement) for measurement in todo]
    failures += run_all(config, store, works, stage="bench", unit="samples", most_at_once=1)
    measured = tuple(measurement.artifact for measurement in todo if ledger.is_done(measurement.artifact))
    lines = [f"{len(measured)} models measured, {len(planned) - len(todo)} were up to date"]
    having_task = {model.name for model in plan.models if settings.task in model.inputs}
    without = having_task - {measurement.artifact.model for measurement in planned}
    lines += [f"{name} has no sample of {settings.task} with a foil to measure" for name in sorted(without)]
    skipped = len(planned) - len(todo)
    return StageSummary("bench", len(measured), skipped, tuple(failures), tuple(lines), measured)


def _work(config: RunConfig, ledger: Ledger, measurement: Measurement) -> Work:
    """The work for the scheduler that measures one model."""
    resolved, task, rows = measurement.plan.resolved, measurement.artifact.task, measurement.rows
    command = f"closelook bench --config {config.name}"

    def complete(report: Report) -> None:
        if not report["error"]:
            path, file = json.loads(report["result"])
            _complete(config, ledger, measurement, path, Written(**file))

    return Work(
        name=resolved.config.name,
        model=resolved.config,
        worker=measure,
        arguments=(ledger.store, resolved, task, config.seed, command, rows),
        size=len(rows),
        dtypes=(BENCH_DTYPE,),
        on_report=complete,
    )


def measure(
    store: Store, resolved: ResolvedModel, task: str, seed: int, command: str, rows: Sequence[dict[str, Any]]
) -> pa.Table:
    """Measure a model on its device, in a Ray worker, and write the results to the store. Returns the report."""

    def written() -> dict[str, Any]:
        device = own_device()
        view = open_view(resolved, BENCH_DTYPE, device, seed)
        measured = Results("lrp", device_name(device), command)
        measure_rows(measured, resolved.config.name, view, rows, task)
        path, file = write(measured.result(), store)
        return {"result": json.dumps([path, asdict(file)])}

    tokens = sum(len(row["input_ids"]) for row in rows)
    return reported(f"bench.lrp.{resolved.config.name}", len(rows), tokens, written)


def _complete(config: RunConfig, ledger: Ledger, measurement: Measurement, path: str, file: Written) -> None:
    """Write the manifest of a measurement."""
    shard = path.removeprefix(f"{measurement.artifact.folder}/")
    record = {"shards": [shard], "samples": len(measurement.rows), "model": model_entry(measurement)}
    ledger.commit(measurement.artifact, record, files={path: file})
