"""Bench: table 8 of the run's own models, where they run, one Ray task a model.

Models are measured one after the other, so that nothing of ours disturbs the timing. A model's manifest is keyed by
all that decides what is measured: a run measures what is missing, and what another key has measured is removed.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from jobs.bench.configured import first_rows, measure_rows
from jobs.bench.harness import Bench, device_name, versions
from jobs.bench.storage import write
from jobs.cluster.pools import cluster_slots, connect, share_of, uses_gpu
from jobs.cluster.progress import Progress
from jobs.config import BenchConfig, RunConfig
from jobs.plan.cells import ModelPlan, Plan, make_plan
from jobs.plan.models import ModelUnavailable, ResolvedModel, open_view
from jobs.stages.summary import StageSummary
from jobs.store import Store

VERSION = 1  # raised when something else is measured
DTYPE = "float32"  # Close Look 5.4


@dataclass(frozen=True)
class Measurement:
    """What is measured of one model."""

    plan: ModelPlan
    task: str
    samples: int

    @property
    def model(self) -> str:
        return self.plan.name

    @property
    def manifest(self) -> str:
        return f"bench.lrp.{self.model}"

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        return first_rows(self.plan.inputs[self.task], self.samples)

    @cached_property
    def key(self) -> str:
        resolved = self.plan.resolved
        numbers = [VERSION, resolved.identity, resolved.config.attn, self.task, self.rows]
        return hashlib.sha256(json.dumps(numbers, sort_keys=True).encode()).hexdigest()


def bench(config: RunConfig, store: Store) -> StageSummary:
    """Measure every model of the benchmark's task that is not measured yet."""
    settings = config.benchmark()
    plan = make_plan(config, store)
    wanted = list(wanted_measurements(settings, plan))
    todo = [measurement for measurement in wanted if not is_measured(store, measurement)]
    failures = [*plan.failures.values()]
    failures += [f"{name}: {task} is not prepared" for name, task in plan.unprepared if task == settings.task]
    if todo:
        connect(config)
        failures += _measure_all(config, store, todo)
    measured = sum(is_measured(store, measurement) for measurement in todo)
    lines = [f"{measured} models measured, {len(wanted) - len(todo)} were up to date"]
    without = {model.name for model in plan.models if settings.task in model.inputs} - {one.model for one in wanted}
    lines += [f"{name} has no sample of {settings.task} with a foil to measure" for name in sorted(without)]
    return StageSummary("bench", measured, len(wanted) - len(todo), tuple(failures), tuple(lines))


def wanted_measurements(settings: BenchConfig | None, plan: Plan) -> Iterator[Measurement]:
    """One of each model that has samples of the task; none without settings."""
    for model in plan.models:
        if settings is not None and settings.task in model.inputs:
            measurement = Measurement(model, settings.task, settings.samples)
            if measurement.rows:
                yield measurement


def is_measured(store: Store, measurement: Measurement) -> bool:
    record = store.manifest(measurement.manifest)
    return record is not None and record["key"] == measurement.key and store.exists(record["file"])


def _measure_all(config: RunConfig, store: Store, todo: Sequence[Measurement]) -> list[str]:
    """One after the other; returns the failures."""
    failures = []
    with Progress({m.model: len(m.rows) for m in todo}, stage="bench", unit="samples") as progress:
        for measurement in todo:
            progress.begin(measurement.model)
            report = _measure_remotely(config, store, measurement)
            if report["error"]:
                failures.append(f"model {measurement.model}: {report['error']}")
                continue
            _complete(config, store, measurement, report["file"])
            tokens = sum(len(row["input_ids"]) for row in measurement.rows)
            progress.advance(measurement.model, len(measurement.rows), tokens)
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
        name=f"bench-{measurement.model}",
        num_gpus=share.gpus,
        num_cpus=share.cpus,
        label_selector=dict(share.labels) or None,
        max_retries=config.max_attempts - 1,
    )
    command = f"closelook bench --config {config.name}"
    try:
        return ray.get(task.remote(store, resolved, measurement.rows, measurement.task, config.seed, command))
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


def _complete(config: RunConfig, store: Store, measurement: Measurement, file: str) -> None:
    """Write the manifest, then remove what it replaces."""
    before = store.manifest(measurement.manifest)
    record = {
        "key": measurement.key,
        "file": file,
        "task": measurement.task,
        "samples": len(measurement.rows),
        "model": {"identity": measurement.plan.resolved.identity, "id": measurement.plan.resolved.config.id},
        "config": config.model_dump(mode="json"),
        "versions": versions(),
        "written": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
    store.write_manifest(measurement.manifest, record)
    if before is not None and before["file"] != file:
        store.delete(before["file"])


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())
