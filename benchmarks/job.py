"""`closelook bench job`: Ray's overhead over a bare loop, the requests of an object store, and the cost of planning.

The bare loop calls the worker in a process of its own on the same units, with the same reads and commits. The time of a
whole run is that from the plan to the last manifest, imports and loading of the model included; the start of Ray itself
is not included. Steady time is that from the first commit to the last. Requests are counted by an
S3 server on this machine, for a run, for one of twice the samples, and for one with nothing to do. A plan of many rows
is made in a process of its own, whose largest resident memory is measured.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from benchmarks.harness import GIB, Bench, Options, interleave
from benchmarks.object_store import object_store
from closelook.evaluation.benchmark.demo import model_dir
from closelook.evaluation.schema import VIEW
from closelook.jobs.bench.record import field_of, seconds_of, summary
from closelook.jobs.cluster.pools import connect
from closelook.jobs.cluster.reports import reports_in
from closelook.jobs.config import RunConfig
from closelook.jobs.plan.cells import make_plan
from closelook.jobs.plan.models import load_tokenizer, tokenizer_key
from closelook.jobs.plan.node import Run
from closelook.jobs.stages.compute import compute, works_of
from closelook.jobs.store import Ledger, Store
from closelook.jobs.store.artifacts import views_of

METHODS = ("attnlrp", "gradient_x_input")
ROWS, LENGTHS = 20, (120, 260)  # of the runs that are timed: samples, fewest and most tokens
FILE_ROWS = 100_000  # of the views that are planned
LATENCY_S = 0.025


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Run the chosen parts; see `--help`. Returns the result as JSON."""
    options = Options("job", __doc__, PARTS)
    options.number("--repeats", 3, "of each run", quick=1)
    options.number("--planned", 1_000_000, "rows of the plan", quick=20_000)
    options.number("--models", 10, "of the plan", quick=2)
    bench = options.begin(arguments)
    for part in bench.chosen.parts:
        with tempfile.TemporaryDirectory(prefix="closelook-bench-") as folder:
            PARTS[part](bench, folder)
    return bench.finish()


def config_of(root: str, rows: int, model: str, models: int = 1, workers: int = 1, **settings: Any) -> RunConfig:
    """The config of a run of `models` equal models over one task, with a few batches in a shard."""
    shared = {"id": model, "tokenizer": str(model_dir("gpt2")), "workers": [workers, workers]}
    known = {"name": "bench", "root": root, "device": "cpu", "methods": METHODS, "token_budget": 512, "shard_rows": 2}
    known["tasks"] = {"sva": {"source": "demo", "limit": rows}}
    known["models"] = [{"name": f"model-{index}", **shared} for index in range(models)]
    return RunConfig.model_validate(known | settings)


def prepared(config: RunConfig, rows: int, lengths: tuple[int, int]) -> Store:
    """The store of a run, with views of `rows` samples of random tokens; `lengths` are the fewest and most tokens."""
    store, draw = Store(config.root), random.Random(0)
    views = views_of(tokenizer_key(load_tokenizer(config.models[0])), "sva")
    shards = []
    for start in range(0, rows, FILE_ROWS):
        samples = [_sample(draw, index, lengths) for index in range(start, min(rows, start + FILE_ROWS))]
        shards.append(f"{start:09d}.parquet")
        store.write_shard(f"{views.folder}/{shards[-1]}", pa.Table.from_pylist(samples, schema=VIEW), VIEW)
    Ledger(store).commit(views, {"shards": shards, "rows": rows})
    return store


def _sample(draw: random.Random, index: int, lengths: tuple[int, int]) -> dict[str, Any]:
    """A row of the table VIEW with random tokens."""
    length = draw.randint(*lengths)
    nowhere = dict.fromkeys(("evidence_mask", "special_mask"), [False] * length)
    predicted = {"position": length - 1, "target_id": 7, "foil_id": 8}
    ids = [draw.randrange(5, 60) for _ in range(length)]
    return {"sample_id": f"{index:016d}", "input_ids": ids, "length": length, **predicted, **nowhere}


def overhead(bench: Bench, folder: str) -> None:
    """Time the same units by a bare loop, by Ray with one worker, and by Ray with two, in turn."""
    model, lengths = ("demo/gpt2", (30, 40)) if bench.quick else ("random/gpt2", LENGTHS)
    rows = 8 if bench.quick else ROWS
    steady: dict[int, list[float]] = {0: [], 1: [], 2: []}  # by the number of Ray's workers

    def timed(workers: int) -> float:
        root = f"{folder}/{workers}-{len(steady[workers])}"
        config = config_of(root, rows, model, workers=workers or 1)
        store = prepared(config, rows, lengths)
        run = partial(_by_ray, config, store) if workers else partial(in_own_process, bare_loop, config, store)
        seconds = seconds_of(run)
        steady[workers].append(steady_s(store))
        return seconds

    connect(config_of(folder, rows, model))  # the start of Ray is not counted
    whole = interleave({str(workers): partial(timed, workers) for workers in steady}, bench.chosen.repeats, warmup=0)
    for kind, (bare, single, double) in {"whole run": whole.values(), "steady": steady.values()}.items():
        for name, seconds in (("bare loop", bare), ("ray, one worker", single), ("ray, two workers", double)):
            bench.row(what=kind, method=name, seconds=summary(seconds))
        bench.paired(f"ray over bare loop, {kind}", (single, bare), 1.1)
        bench.paired(f"two workers over one, {kind}", (single, double), 1.0, "higher", cores=os.cpu_count())


def steady_s(store: Store) -> float:
    """The seconds from the first commit of a shard to the last. Raises RuntimeError for a run that rejected rows."""
    if store.files("relevance/rejects", recursive=True):
        raise RuntimeError("the benchmark's run rejected rows")
    commits = [store.modified_s(path) or 0.0 for path in store.files("relevance", recursive=True)]
    return max(commits) - min(commits)


def _by_ray(config: RunConfig, store: Store) -> None:
    """Run the stage `attribute`. Raises RuntimeError if it does not complete."""
    if not compute(config, store, "attribute").complete:
        raise RuntimeError("the benchmark's run did not complete")


def bare_loop(config: RunConfig, store: Store) -> None:
    """Compute all units in turn in one thread, as a worker with one CPU does. Raises RuntimeError if one fails."""
    import torch

    torch.set_num_threads(1)
    (missing,) = works_of(Run(config, make_plan(config, store), Ledger(store)), "attribute")
    work = missing.work()
    worker = work.worker(*work.arguments)
    for table in work.reader()():
        (report,) = reports_in(worker(table))
        if report.error or report.rejects:
            raise RuntimeError(report.error or "the benchmark's run rejected rows")
        work.on_report(report)
    if failures := list(work.on_end()):
        raise RuntimeError(failures[0])


def requests(bench: Bench, folder: str) -> None:
    """Count the requests of a run, of one of twice the samples, and of one with nothing to do, which is timed."""
    rows, counts = 16 if bench.quick else 64, []
    with object_store() as server:
        for samples in (rows, 2 * rows):
            config = config_of(server.root(str(samples)), samples, "demo/gpt2", shard_rows=8, token_budget=64)
            store = prepared(config, samples, (8, 8))
            server.requests = 0
            bare_loop(config, store)
            counts.append(server.requests)
            bench.row(what="requests", samples=samples, units=samples // 8, requests=float(server.requests))
        server.requests, server.latency_s = 0, LATENCY_S
        seconds = seconds_of(partial(_by_ray, config, store))
        bench.row(what="nothing to do", seconds=seconds, requests=float(server.requests))
    bench.ratio("requests of twice the samples", counts[1] / counts[0], 2.0, "lower")
    bench.ratio(f"nothing to do, {1000 * LATENCY_S:.0f} ms a request: seconds", seconds, 5.0, "lower")


def plan(bench: Bench, folder: str) -> None:
    """Measure the memory and the seconds of a plan of many rows for many models."""
    rows, models = bench.chosen.planned, bench.chosen.models
    prepared(config_of(folder, rows, "demo/gpt2"), rows, (8, 29))
    peak, seconds = in_own_process(_plan, folder, rows, models)
    bench.row(what="plan", rows=rows, models=models, peak_bytes=peak, seconds=seconds)
    bench.ratio(f"plan of {rows} rows for {models} models: GiB", peak / GIB, 1.0, "lower")
    bench.ratio(f"plan of {rows} rows for {models} models: seconds", seconds, 20.0, "lower")


def _plan(root: str, rows: int, models: int) -> None:
    """Plan a run, and cut the units of all its models. Raises RuntimeError if rows are missing."""
    config, store = config_of(root, rows, "demo/gpt2", models), Store(root)
    works = works_of(Run(config, make_plan(config, store), Ledger(store)), "attribute")
    if sum(group.size for work in works for group in work.groups) != rows * models:
        raise RuntimeError("the plan is not of all rows")


def in_own_process(function: Callable[..., object], *arguments: Any) -> tuple[int, float]:
    """Call `function` in a new process: (its largest resident memory in bytes on Linux, the seconds of the call)."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        return pool.submit(_measured, function, arguments).result()


def _measured(function: Callable[..., object], arguments: Sequence[Any]) -> tuple[int, float]:
    """The result of `in_own_process`, measured inside the new process."""
    seconds = seconds_of(partial(function, *arguments))
    resident = field_of(Path("/proc/self/status"), "VmHWM") or "0 kB"
    return 1024 * int(resident.split()[0]), seconds


PARTS = {"overhead": overhead, "requests": requests, "plan": plan}
