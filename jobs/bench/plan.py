"""What planning costs: of a matrix that is complete, on a slow object store, and of very many samples and models.

The first is the stage `attribute` with nothing to do: every cell of the config `paper` complete, each request of its
store taking 25 ms. The second plans two numbers of rows of one tokenizer for many models, each in a process of its own:
the largest resident memory grows with the rows, and at that rate follows that of ten million.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from evaluation.schema import VIEW
from jobs.bench import matrix
from jobs.bench.harness import Bench, device_name, in_own_process, parser
from jobs.bench.object_store import object_store
from jobs.config import RunConfig
from jobs.plan.cells import make_plan
from jobs.plan.models import load_tokenizer, tokenizer_key
from jobs.stages.attribute import attribute, missing_work
from jobs.stages.run import run
from jobs.store import Ledger, Store
from jobs.store.artifacts import views_of

LATENCY_S = 0.025
NOTHING_TARGET_S = 15.0
WANTED_ROWS, MEMORY_TARGET_GIB = 10_000_000, 2.0
FILE_ROWS = 100_000
LENGTHS = (8, 30)  # tokens, fewest and most


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    options = parser("plan", __doc__ or "")
    options.add_argument("--rows", type=int, help="of the larger plan, default 1000000; quick 40000")
    options.add_argument("--models", type=int, help="default 100; quick 3")
    chosen = options.parse_args(arguments)
    bench = Bench("plan", device_name("cpu"))
    nothing_to_do(bench, models=1 if chosen.quick else None)
    many_rows(
        bench, chosen.rows or (40_000 if chosen.quick else 1_000_000), chosen.models or (3 if chosen.quick else 100)
    )
    return bench.finish(chosen)


def nothing_to_do(bench: Bench, models: int | None) -> None:
    """The stage over complete cells: the first time, and again by the same process, as later stages plan it."""
    with object_store() as server:
        config = matrix.matrix_config(server.root("done"), 32, models)
        matrix.prepare(config, Store(config.root), 32)
        _, cells = matrix.attribute(config, Store(config.root))
        list(run(config, Store(config.root), ["attribute"]))  # as the run that completed them ends
        server.latency_s = LATENCY_S
        store, seconds = Store(config.root), []
        for name in ("first", "again"):
            server.requests, start = 0, time.perf_counter()
            summary = attribute(config, store)
            seconds.append(time.perf_counter() - start)
            if summary.computed or summary.skipped != cells:
                raise RuntimeError("the benchmark's cells were not complete")
            bench.row(what="nothing to do", run=name, cells=cells, seconds=seconds[-1], requests=server.requests)
            print(f"{cells} complete cells, {name}: {seconds[-1]:.1f} s, {server.requests} requests", flush=True)
    ms = round(1000 * LATENCY_S)
    bench.ratio(f"{cells} complete cells, {ms} ms a request: seconds", seconds[0], NOTHING_TARGET_S, "lower")


def many_rows(bench: Bench, rows: int, models: int) -> None:
    peaks = {}
    for size in (rows // 2, rows):
        peaks[size], seconds = _planned(size, models)
        bench.row(what="many rows", rows=size, models=models, peak_bytes=peaks[size], seconds=seconds)
        print(f"{size} rows for {models} models: {seconds:.1f} s, {peaks[size] / 2**30:.2f} GiB at most", flush=True)
    each = (peaks[rows] - peaks[rows // 2]) / (rows - rows // 2)
    whole = (peaks[rows] + each * (WANTED_ROWS - rows)) / 2**30
    name = f"{WANTED_ROWS} rows for {models} models: GiB of the driver"
    bench.ratio(name, whole, MEMORY_TARGET_GIB, "lower", measured_rows=rows, bytes_a_row=round(each, 1))


def _planned(rows: int, models: int) -> tuple[int, float]:
    """The largest resident memory (bytes) of a process that plans so many rows, and its seconds."""
    with tempfile.TemporaryDirectory(prefix="closelook-bench-") as folder:
        in_own_process(_prepare, folder, rows, models)  # what it holds does not count
        return in_own_process(_plan, folder, rows, models)


def _config(root: str, models: int) -> RunConfig:
    one = {"id": "demo/gpt2"}
    return RunConfig.model_validate(
        {
            "name": "bench",
            "root": root,
            "tasks": {"sva": {"source": "demo"}},
            "models": [{"name": f"m{i}", **one} for i in range(models)],
            "methods": ["attnlrp", "gradient_x_input", "random"],
        }
    )


def _prepare(root: str, rows: int, models: int) -> None:
    store, config, draw = Store(root), _config(root, 1), np.random.default_rng(0)
    views = views_of(tokenizer_key(load_tokenizer(config.models[0])), "sva")
    for start in range(0, rows, FILE_ROWS):
        count = min(FILE_ROWS, rows - start)
        lengths = draw.integers(*LENGTHS, count).astype(np.int32)
        offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int32())
        ids = pa.ListArray.from_arrays(offsets, pa.array(draw.integers(5, 60, offsets[-1].as_py()), pa.int32()))
        marks = pa.ListArray.from_arrays(offsets, pa.array(np.zeros(offsets[-1].as_py(), bool)))
        known: dict[str, Any] = {
            "sample_id": [f"{start + i:016x}" for i in range(count)],
            "input_ids": ids,
            "position": lengths - 1,
            "target_id": np.full(count, 7, np.int32),
            "foil_id": np.full(count, 8, np.int32),
            "evidence_mask": marks,
            "special_mask": marks,
            "length": lengths,
        }
        nulls = {field.name: pa.nulls(count, field.type) for field in VIEW if field.name not in known}
        store.write_shard(f"{views.folder}/{start:09d}.parquet", pa.table(known | nulls), VIEW)
    store.write_manifest(views.name, {"rows": rows})


def _plan(root: str, rows: int, models: int) -> None:
    """Plan, and cut all units of all models."""
    config, store = _config(root, models), Store(root)
    work = missing_work(config, Ledger(store), make_plan(config, store))
    if sum(len(unit.rows) for model in work for unit, _ in model.units) != rows * models:
        raise RuntimeError("the plan is not of all rows")


if __name__ == "__main__":
    main()
