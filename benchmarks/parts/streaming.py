"""Very many samples that are sent in units through a cluster's pipeline, to a worker that commits nothing."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from benchmarks.parts.runs import small_run
from benchmarks.parts.stores.views import write_views
from jobs.cluster.executor import RayExecutor, Stream, executed_by, pipeline
from jobs.cluster.pools import connect
from jobs.cluster.reports import reported
from jobs.cluster.scheduler import run_all
from jobs.cluster.work import Work
from jobs.config import RunConfig
from jobs.plan.cells import make_plan
from jobs.plan.inputs import task_of
from jobs.plan.node import Run
from jobs.stages.compute import works_of
from jobs.store import Ledger, Store

UNIT_ROWS = 2048
TOKENS = 32  # of a sample
FILE_ROWS = 100_000
_STORE, _LOOK_S = "object_store.json", 0.05


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


def prepare(root: str, rows: int) -> None:
    """Writes views of `rows` samples."""
    write_views(Store(root), _config(root).models[0], "sva", rows, (TOKENS, TOKENS), FILE_ROWS)


def stream(root: str, rows: int) -> None:
    """Sends all units through a pipeline, and notes the most bytes that Ray's object store held meanwhile.

    `object_store_bytes` returns that number.
    """
    config, store = _config(root), Store(root)
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


def object_store_bytes(root: str) -> int:
    """The most bytes that Ray's object store held during `stream`."""
    held: int = json.loads(Path(root, _STORE).read_text())
    return held


def _config(root: str) -> RunConfig:
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
