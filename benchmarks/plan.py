"""`closelook bench plan`: the time of planning on a slow object store, and its memory for very many samples and models.

The first part times the stage `attribute` with nothing to do: all cells of the config `paper` are complete, and each
request of the store takes 25 ms. The second plans two numbers of rows for many models, each in a process of its own,
and extrapolates the largest resident memory to ten million rows. The third sends units of two numbers of rows through
Ray to a worker that commits nothing, and measures the memory of the driver and of Ray's object store.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from statistics import linear_regression
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.parts import streaming
from benchmarks.parts.harness import SCRATCH, Bench, RowsInMemory, in_own_process, parser
from benchmarks.parts.runs import small_run
from benchmarks.parts.stores import matrix
from benchmarks.parts.stores.object_store import object_store
from benchmarks.parts.stores.views import write_views
from jobs.config import RunConfig
from jobs.plan.cells import make_plan
from jobs.plan.node import Run
from jobs.stages.compute import compute, works_of
from jobs.stages.run import run
from jobs.store import Ledger, Store

LATENCY_S = 0.025
NOTHING_TARGET_S = 15.0
FILE_ROWS = 100_000
MANY_ROWS, MIB = 10_000_000, 2**20
SENT_DRIVER_MIB, SENT_STORE_MIB = 1024.0, 200.0
LENGTHS = (8, 29)  # fewest and most tokens of a sample


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Run all parts; see `--help`. Returns the result as JSON."""
    options = parser("plan", __doc__)
    options.number("--rows", 1_000_000, "of the larger plan", quick=40_000)
    options.number("--models", 100, "of the larger plan", quick=3)
    options.number("--sent", 1_000_000, "rows that are sent to a worker", quick=8_000)
    bench = options.begin(arguments)
    nothing_to_do(bench)
    rows, models = bench.chosen.rows, bench.chosen.models
    memory = RowsInMemory(_prepare, _plan, MANY_ROWS, 2.0, f"rows for {models} models", "the driver")
    bench.memory_of_rows(memory, sizes=(rows // 2, rows), models=models)
    send(bench, bench.chosen.sent)
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
            print(f"{cells} complete cells, {name}: {seconds[-1]:.1f} s, {server.requests} requests", flush=True)
    title = f"{cells} complete cells, {1000 * LATENCY_S:.0f} ms a request: seconds"
    bench.ratio(title, seconds[0], NOTHING_TARGET_S, "lower")


def send(bench: Bench, rows: int) -> None:
    """Measure the largest memory of the driver and of Ray's object store while half, then all rows go to a worker."""
    sizes, peaks, held = (rows // 2, rows), [], []
    for size in sizes:
        with TemporaryDirectory(prefix=SCRATCH) as root:
            in_own_process(streaming.prepare, root, size)
            peak, seconds = in_own_process(streaming.stream, root, size)
            held.append(streaming.object_store_bytes(root))
        peaks.append(peak)
        bench.row(what="sent", rows=size, peak_bytes=peak, object_store_bytes=held[-1], seconds=seconds)
        mib = f"{peak / MIB:.0f} MiB of the driver, {held[-1] / MIB:.0f} MiB of the object store"
        print(f"{size} rows of {streaming.TOKENS} tokens sent: {seconds:.1f} s, {mib}", flush=True)
    for name, values, target in (("driver", peaks, SENT_DRIVER_MIB), ("object store", held, SENT_STORE_MIB)):
        line = linear_regression(sizes, values)
        many = (line.intercept + max(0.0, line.slope) * MANY_ROWS) / MIB
        subject = f"{MANY_ROWS} rows of {streaming.TOKENS} tokens sent: MiB of the {name}"
        bench.ratio(subject, many, target, "lower", measured_rows=rows, bytes_a_row=round(line.slope, 1))


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
