"""`closelook bench plan`: the time of planning on a slow object store, and its memory for very many samples and models.

The first part times the stage `attribute` with nothing to do: all cells of the config `paper` are complete, and each
request of the store takes 25 ms. The second plans two numbers of rows for many models, each in a process of its own,
and extrapolates the largest resident memory to ten million rows. The third sends units of two numbers of rows through
Ray to a worker that commits nothing, and measures the memory of the driver and of Ray's object store.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from benchmarks.parts.harness import GIB, MIB, Bench, parser
from benchmarks.parts.runs import small_run, write_views
from benchmarks.parts.stores import matrix
from benchmarks.parts.stores.object_store import object_store
from closelook.jobs.cluster.executor import RayExecutor, Stream, executed_by, pipeline
from closelook.jobs.cluster.pools import Work, connect
from closelook.jobs.cluster.reports import reported
from closelook.jobs.cluster.scheduler import run_all
from closelook.jobs.config import RunConfig
from closelook.jobs.plan.cells import make_plan
from closelook.jobs.plan.inputs import task_of
from closelook.jobs.plan.node import Run
from closelook.jobs.stages.compute import compute, works_of
from closelook.jobs.stages.run import run
from closelook.jobs.store import Ledger, Store

LATENCY_S = 0.025
NOTHING_TARGET_S = 15.0
FILE_ROWS = 100_000
MANY_ROWS, MANY_TARGET_GIB = 10_000_000, 2.0
LENGTHS = (8, 29)  # fewest and most tokens of a sample
SENT_DRIVER_MIB, SENT_STORE_MIB = 1024.0, 200.0
UNIT_ROWS, TOKENS = 2048, 32  # of the samples that are sent: in a unit, and tokens of each
_STORE, _LOOK_S = "object_store.json", 0.05


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Run all parts; see `--help`. Returns the result as JSON."""
    options = parser("plan", __doc__)
    options.number("--rows", 1_000_000, "of the larger plan", quick=40_000)
    options.number("--models", 100, "of the larger plan", quick=3)
    options.number("--sent", 1_000_000, "rows that are sent to a worker", quick=8_000)
    bench = options.begin(arguments)
    nothing_to_do(bench)
    rows, models = bench.chosen.rows, bench.chosen.models
    planned = bench.by_rows(_prepare, _plan, (rows // 2, rows), models=models)
    name = f"{MANY_ROWS} rows for {models} models: GiB of the driver"
    bench.extrapolate(name, planned, MANY_ROWS, GIB, MANY_TARGET_GIB)
    sizes = bench.chosen.sent // 2, bench.chosen.sent
    sent = bench.by_rows(prepare_sent, stream, sizes, object_store_bytes)
    title = f"{MANY_ROWS} rows of {TOKENS} tokens sent: MiB of the"
    bench.extrapolate(f"{title} driver", sent, MANY_ROWS, MIB, SENT_DRIVER_MIB)
    bench.extrapolate(f"{title} object store", sent, MANY_ROWS, MIB, SENT_STORE_MIB, "object_store_bytes")
    return bench.finish()


def nothing_to_do(bench: Bench) -> None:
    """Time the stage over complete cells: first, and once more in the same process, as later stages plan it again."""
    with object_store() as server:
        config = matrix.matrix_config(server.root("done"), 32, models=1 if bench.quick else None)
        matrix.prepare(config, Store(config.root), 32)
        _, cells = matrix.attribute(config, Store(config.root))
        list(run(config, Store(config.root), ["attribute"]))  # leaves the store as the end of a run does
        server.latency_s = LATENCY_S
        store, seconds = Store(config.root), []
        for name in ("first", "again"):
            server.requests, start = 0, time.perf_counter()
            summary = compute(config, store, "attribute")
            seconds.append(time.perf_counter() - start)
            if summary.computed or summary.skipped != cells:
                raise RuntimeError("the benchmark's cells were not complete")
            bench.row(what="nothing to do", run=name, cells=cells, seconds=seconds[-1], requests=server.requests)
    title = f"{cells} complete cells, {1000 * LATENCY_S:.0f} ms a request: seconds"
    bench.ratio(title, seconds[0], NOTHING_TARGET_S, "lower")


def _config(root: str, models: int) -> RunConfig:
    """The config of a run of so many models on one task."""
    return small_run(root, {"sva": None}, [{"name": f"m{index}", "id": "demo/gpt2"} for index in range(models)])


def _prepare(root: str, rows: int, models: int) -> None:
    """Write so many samples of random tokens, for the tokenizer that all models share."""
    model = _config(root, models).models[0]
    write_views(Store(root), model, "sva", rows, LENGTHS, FILE_ROWS)


def _plan(root: str, rows: int, models: int) -> None:
    """Plan a run, and cut the units of all its models."""
    config, store = _config(root, models), Store(root)
    works = works_of(Run(config, make_plan(config, store), Ledger(store)), "attribute")
    if sum(group.size for work in works for group in work.groups) != rows * models:
        raise RuntimeError("the plan is not of all rows")


# rows that are sent in units through a cluster's pipeline, to a worker that commits nothing


class Pooled(RayExecutor):
    """An executor with a pool of actors for every model, as on a cluster, on a single machine too."""

    @contextmanager
    def streaming(self, works: Sequence[Work], on_gpu: bool) -> Iterator[Stream]:
        yield pipeline


class Idle:
    """A worker that takes units and commits nothing."""

    def __init__(self, *arguments: Any) -> None:
        pass

    def __call__(self, table: pa.Table) -> pa.Table:
        task = task_of(table.select(["task"]).to_pylist()[0])
        return reported(task.title, task.size, task.tokens, dict)


def prepare_sent(root: str, rows: int) -> None:
    """Write views of `rows` samples."""
    write_views(Store(root), _config_sent(root).models[0], "sva", rows, (TOKENS, TOKENS), FILE_ROWS)


def stream(root: str, rows: int) -> None:
    """Send all units through a pipeline, and note the most bytes that Ray's object store held meanwhile.

    `object_store_bytes` returns that number.
    """
    config, store = _config_sent(root), Store(root)
    (missing,) = works_of(Run(config, make_plan(config, store), Ledger(store)), "attribute")
    counted: list[int] = []
    work = replace(
        missing.work(),
        worker=Idle,
        on_report=lambda report: counted.append(report["rows"]),
        on_end=lambda: (),
    )
    connect(config)
    with _watched_object_store() as most, executed_by(Pooled()):
        failures = run_all(config, store, [work], stage="bench", unit="rows")
    if failures or sum(counted) != rows:
        raise RuntimeError(f"only {sum(counted)} of {rows} rows reached the worker: {'; '.join(failures)}")
    Path(root, _STORE).write_text(json.dumps(most[0]))


def object_store_bytes(root: str) -> dict[str, int]:
    """The most bytes that Ray's object store held during `stream`."""
    return {"object_store_bytes": json.loads(Path(root, _STORE).read_text())}


def _config_sent(root: str) -> RunConfig:
    """The config of a run with one model and method, in units of UNIT_ROWS samples."""
    model = {"name": "gpt2", "id": "demo/gpt2"}
    return small_run(root, {"sva": None}, [model], ["gradient_x_input"], shard_rows=UNIT_ROWS, token_budget=65_536)


@contextmanager
def _watched_object_store() -> Iterator[list[int]]:
    """Watches the object store of this node, the only one: inside the `with`, the list holds its most bytes so far."""
    import ray
    from ray._private.internal_api import get_memory_info_reply, get_state_from_address

    most, ended = [0], threading.Event()
    state = get_state_from_address(ray.get_runtime_context().gcs_address)

    def look() -> None:
        while not ended.wait(_LOOK_S):
            stats = get_memory_info_reply(state).store_stats
            most[0] = max(most[0], stats.object_store_bytes_used)

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield most
    finally:
        ended.set()
        thread.join()
