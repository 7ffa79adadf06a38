"""Bench: table 8 of the run's own models, where they run, one Ray task a model.

Models are measured one after the other, so that nothing of ours disturbs the timing. A model's manifest is keyed by
all that decides what is measured: a run measures what is missing, and what another key has measured is removed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jobs.bench.configured import measure_rows
from jobs.bench.harness import Bench, device_name
from jobs.bench.storage import write
from jobs.cluster.pools import cluster_slots, connect, share_of, uses_gpu
from jobs.cluster.progress import Progress
from jobs.config import RunConfig
from jobs.plan.cells import make_plan
from jobs.plan.models import ModelUnavailable, ResolvedModel, open_view
from jobs.plan.products.measurements import DTYPE, Measurement, wanted_measurements
from jobs.stages.summary import StageSummary
from jobs.store import Ledger, Store


def bench(config: RunConfig, store: Store) -> StageSummary:
    """Measure every model of the benchmark's task that is not measured yet."""
    settings = config.benchmark()
    plan, ledger = make_plan(config, store), Ledger(store)
    wanted = list(wanted_measurements(settings, plan))
    todo = [measurement for measurement in wanted if not ledger.is_done(measurement.artifact)]
    failures = [*plan.failures.values()]
    failures += [f"{name}: {task} is not prepared" for name, task in plan.unprepared if task == settings.task]
    if todo:
        connect(config)
        failures += _measure_all(config, ledger, todo)
    measured = sum(ledger.is_done(measurement.artifact) for measurement in todo)
    lines = [f"{measured} models measured, {len(wanted) - len(todo)} were up to date"]
    without = {model.name for model in plan.models if settings.task in model.inputs} - {
        one.artifact.model for one in wanted
    }
    lines += [f"{name} has no sample of {settings.task} with a foil to measure" for name in sorted(without)]
    return StageSummary("bench", measured, len(wanted) - len(todo), tuple(failures), tuple(lines))


def _measure_all(config: RunConfig, ledger: Ledger, todo: Sequence[Measurement]) -> list[str]:
    """One after the other; returns the failures."""
    failures = []
    with Progress({m.artifact.model: len(m.rows) for m in todo}, stage="bench", unit="samples") as progress:
        for measurement in todo:
            progress.begin(measurement.artifact.model)
            report = _measure_remotely(config, ledger.store, measurement)
            if report["error"]:
                failures.append(f"model {measurement.artifact.model}: {report['error']}")
                continue
            _complete(config, ledger, measurement, report["file"])
            tokens = sum(len(row["input_ids"]) for row in measurement.rows)
            progress.advance(measurement.artifact.model, len(measurement.rows), tokens)
    return failures


def _measure_remotely(config: RunConfig, store: Store, measurement: Measurement) -> dict[str, str]:
    """Where the model's workers run, with what one of them occupies."""
    import ray

    resolved = measurement.plan.resolved
    on_gpu = uses_gpu(config)
    share = share_of(resolved.config, on_gpu)
    if cluster_slots(config, on_gpu).room(share) < 1:
        return {"error": "it asks for more than the cluster has"}
    task = ray.remote(measure).options(
        name=f"bench-{measurement.artifact.model}",
        num_gpus=share.gpus,
        num_cpus=share.cpus,
        label_selector=dict(share.labels) or None,
        max_retries=config.max_attempts - 1,
    )
    command = f"closelook bench --config {config.name}"
    try:
        return ray.get(task.remote(store, resolved, measurement.rows, measurement.artifact.task, config.seed, command))
    except Exception as error:  # whatever Ray raises ends this model, not the others
        return {"error": f"{type(error).__name__}: {_one_line(error)}"}


def measure(
    store: Store, resolved: ResolvedModel, rows: Sequence[dict[str, Any]], task: str, seed: int, command: str
) -> dict[str, str]:
    """In a Ray worker: the model on its device, then a file in the store. Errors are reported, never raised."""
    import torch

    try:
        device = "cuda" if torch.cuda.is_available() else "cpu"
        view = open_view(resolved, DTYPE, device, seed)
        found = Bench("lrp", device_name(device), command)
        measure_rows(found, resolved.config.name, view, rows, task)
        return {"file": write(found.result(), store), "error": ""}
    except (ModelUnavailable, OSError, RuntimeError) as error:
        return {"error": _one_line(error)}


def _complete(config: RunConfig, ledger: Ledger, measurement: Measurement, file: str) -> None:
    resolved = measurement.plan.resolved
    record = {
        "shards": [file.removeprefix(f"{measurement.artifact.folder}/")],
        "samples": len(measurement.rows),
        "model": {"identity": resolved.identity, "id": resolved.config.id},
    }
    ledger.commit(measurement.artifact, record, config=config.model_dump(mode="json"))


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())
