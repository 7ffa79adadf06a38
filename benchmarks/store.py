"""`closelook bench store`: the requests to an object store by the paper's matrix, and by `closelook status`.

The stage `attribute` plans, hands out units, commits shards and closes cells of the config `paper`, without computing
anything, on an S3 server that counts requests: once with some samples of each task and once with twice as many. The
difference gives the requests of a unit, and so those of the published data.

`closelook status` is timed on complete artifacts of very many models in an object store and, as a command, on those of
one model in a folder.
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path
from statistics import linear_regression, median
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.parts.harness import SCRATCH, Bench, interleave, parser
from benchmarks.parts.stores.listed_store import PAGE, listed_store
from benchmarks.parts.stores.many_artifacts import complete_root
from benchmarks.parts.stores.matrix import attribute, matrix_config, prepare
from benchmarks.parts.stores.object_store import object_store
from closelook.jobs.bench.record import summary
from closelook.jobs.commands.roots.status import status
from closelook.jobs.config import RunConfig
from closelook.jobs.store import Store

MATRIX_TARGET = 250_000
GROWTH_TARGET = 2.0
MANY_TARGET_S, MANY_TARGET_MB, MANY_TARGET_REQUESTS = 60.0, 100.0, 30.0
FEW_TARGET_S, FEW_REPEATS = 3.0, 5
SHARD_ROWS = 32
ROWS = 64  # samples of each task


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Run all parts; see `--help`. Returns the result as JSON."""
    options = parser("store", __doc__)
    options.number("--rows", ROWS, f"samples of each task, at least a shard's {SHARD_ROWS}")
    options.number("--models", 1000, "whose complete artifacts are looked at", quick=2)
    bench = options.begin(arguments)
    rows = bench.chosen.rows
    if rows < SHARD_ROWS:
        options.error(f"--rows {rows}: give at least {SHARD_ROWS}, the rows of a shard")
    models = 1 if bench.quick else None
    status_of_many(bench, bench.chosen.models)
    status_of_few(bench)
    units, requests = [], []
    with object_store() as server:
        for count in (rows, 2 * rows):
            config = matrix_config(server.root(str(count)), SHARD_ROWS, models)
            store = Store(config.root)
            prepare(config, store, count)
            server.requests = 0
            of_units, cells = attribute(config, store)
            requests.append(float(server.requests))
            bench.row(what="requests", rows=count, units=of_units, cells=cells, requests=requests[-1])
            units.append(of_units)
    bench.ratio("requests of twice the samples", requests[1] / requests[0], GROWTH_TARGET, "lower")
    line = linear_regression(units, requests)
    published = matrix_config("runs/paper", RunConfig.load("paper").shard_rows, models)
    whole = line.intercept + line.slope * published_units(published)
    name = f"the paper's last {models} models: requests" if models else "the paper's matrix: requests"
    bench.ratio(name, whole, MATRIX_TARGET, "lower", requests_of_a_unit=round(line.slope, 2))
    return bench.finish()


def status_of_many(bench: Bench, models: int) -> None:
    """Measure time, requests and bytes of `status` on the artifacts of so many models in an object store."""
    config, objects, artifacts = complete_root(models)
    with listed_store(objects) as served:
        start, cpu = time.perf_counter(), time.process_time()
        with redirect_stdout(io.StringIO()):
            if not status(config, Store(config.root)):
                raise RuntimeError("the benchmark's artifacts are not complete")
        seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - cpu
        beyond, read = served.requests - len(objects) / PAGE, served.bytes_read
        facts = {"models": models, "artifacts": artifacts, "objects": len(objects), "requests": float(served.requests)}
        bench.row(what="status", **facts, seconds=seconds, cpu_s=cpu_seconds, read_bytes=read)
    subject = f"status of {models} models, {artifacts} artifacts"
    bench.ratio(f"{subject}: seconds", seconds, MANY_TARGET_S, "lower", cpu_s=round(cpu_seconds, 1))
    bench.ratio(f"{subject}: MB read", read / 1e6, MANY_TARGET_MB, "lower")
    bench.ratio(f"{subject}: requests beyond one per {PAGE} objects", beyond, MANY_TARGET_REQUESTS, "lower")


def status_of_few(bench: Bench) -> None:
    """Time the command `closelook status`, Python's start included, on the artifacts of one model in a folder."""
    config, objects, artifacts = complete_root(1)
    with TemporaryDirectory(prefix=SCRATCH) as folder:
        for key, content in objects.items():
            path = Path(folder, "root", key.partition("/")[2])
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content if isinstance(content, bytes) else b"")
            os.truncate(path, content if isinstance(content, int) else len(content))
        settings = config.model_copy(update={"root": str(Path(folder, "root"))})
        Path(folder, "config.json").write_text(settings.model_dump_json())
        command = [sys.executable, "-m", "closelook", "status", "--config", str(Path(folder, "config.json"))]

        def look() -> None:
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)

        # Wall seconds: processor seconds of this process would not be those of the command.
        seconds = interleave({"status": look}, FEW_REPEATS)["status"]
        bench.row(what="status of a folder", artifacts=artifacts, wall_s=summary(seconds))
    bench.ratio(f"closelook status, {artifacts} artifacts in a folder: seconds", median(seconds), FEW_TARGET_S, "lower")


def published_units(config: RunConfig) -> int:
    """The number of units of the published samples, those of heads that the config `paper` computes included."""
    heads = RunConfig.load("paper").heads or {}
    total = 0
    for model in config.models:
        for task in config.tasks:
            samples, _ = config.task(task).published
            total += len(model.dtypes_for(task)) * -(-samples // config.shard_rows)
            if task in heads:
                total += -(-(heads[task] or samples) // config.shard_rows)
    return total
