"""What the Ray path costs over a bare loop, what a second worker brings, and how long the whole paper would take.

The bare loop is the worker itself, called in a process of its own on the same units, with the same reads and commits.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from evaluation.schema import RUNTIME, VIEW
from jobs.attribute import ModelWork, attribute, missing_work
from jobs.bench.harness import Bench, device_name, interleave, paired_ratio, parser, summary
from jobs.bench.simulation import Simulated, paper_jobs, simulate
from jobs.config import RunConfig
from jobs.geometries import GEOMETRIES
from jobs.inputs import read_unit
from jobs.models import load_tokenizer, tokenizer_key
from jobs.plan import make_plan
from jobs.pools import connect
from jobs.store import Store
from jobs.workers.worker import Worker, WorkerOptions

OVERHEAD_TARGET = 1.10
METHODS = ["attnlrp", "gradient_x_input"]
LENGTHS = {"ra": (4, 8), "sva": (8, 40), "qa": (120, 260)}  # tokens, fewest and most, as in the published data
ROWS = {"ra": 200, "sva": 100, "qa": 16}


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    options = parser("job", __doc__ or "")
    options.add_argument("--repeats", type=int, help="default 3; quick 1")
    options.add_argument("--geometry", action="append", choices=sorted(GEOMETRIES), help="for the cost table; repeat")
    chosen = options.parse_args(arguments)
    bench = Bench("job", device_name("cpu"))
    repeats = chosen.repeats or (1 if chosen.quick else 3)
    with tempfile.TemporaryDirectory(prefix="closelook-bench-") as folder:
        runs = Runs(Path(folder), chosen.quick)
        connect(runs.config("gpt2", 1))
        overhead(bench, runs, repeats)
        for geometry in chosen.geometry or ([] if chosen.quick else ["bert-base", "gpt2"]):
            cost_table(bench, runs, geometry)
    for gpus in (8, 64):
        schedule(bench, simulate(paper_jobs(relative), gpus), gpus)
    return bench.finish(chosen)


class Runs:
    """Runs over random tokens, each under a root of its own."""

    def __init__(self, folder: Path, quick: bool) -> None:
        self._folder, self._quick, self._count = folder, quick, 0

    def config(self, geometry: str, workers: int, tasks: Sequence[str] = ("qa",)) -> RunConfig:
        self._count += 1
        family = GEOMETRIES[geometry].family
        model = {"name": geometry, "id": f"random/{geometry}", "tokenizer": _demo_tokenizer(family)}
        if self._quick:
            model["id"] = f"demo/{family}"
        return RunConfig.model_validate(
            {
                "name": "bench",
                "root": str(self._folder / str(self._count)),
                "device": "cpu",
                "tasks": {task: {"source": "demo"} for task in tasks},
                "models": [{**model, "workers": [workers, workers]}],
                "methods": METHODS,
                "token_budget": 1024,
                "shard_rows": 4,
            }
        )

    def prepared(self, config: RunConfig) -> Store:
        store = Store(config.root)
        key = tokenizer_key(load_tokenizer(config.models[0]))
        for task in config.tasks:
            rows = _random_rows(task, 8 if self._quick else ROWS[task])
            store.write_shard(f"{store.views(key, task)}/0.parquet", pa.Table.from_pylist(rows, schema=VIEW), VIEW)
            store.write_manifest(f"views.{key}.{task}", {"rows": len(rows)})
        return store


def overhead(bench: Bench, runs: Runs, repeats: int) -> None:
    """The same units by a bare loop, by Ray with one worker, and by Ray with two."""

    def bare() -> float:
        config = runs.config("gpt2", 1)
        return in_own_process(config, runs.prepared(config))

    def ray(workers: int) -> float:
        config = runs.config("gpt2", workers)
        store = runs.prepared(config)
        start = time.perf_counter()
        if not attribute(config, store).complete:
            raise RuntimeError("the benchmark's run did not complete")
        return time.perf_counter() - start

    seconds = interleave({"bare": bare, "ray": lambda: ray(1), "two": lambda: ray(2)}, repeats, warmup=0)
    for name, values in seconds.items():
        bench.row(what=name, seconds=summary(values))
    bench.ratio("ray over bare loop", paired_ratio(seconds["ray"], seconds["bare"])["median"], OVERHEAD_TARGET, "lower")
    scaling = paired_ratio(seconds["ray"], seconds["two"])["median"]
    bench.ratio("two workers over one", scaling, 1.0, "higher", cores=os.cpu_count())


def in_own_process(config: RunConfig, store: Store) -> float:
    """Wall seconds of the bare loop in a fresh process, its imports and the model's loading included, as with Ray."""
    (work,) = missing_work(config, store, make_plan(config, store))
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=bare_loop, args=(config, store, work))
    start = time.perf_counter()
    process.start()
    process.join()
    if process.exitcode:
        raise RuntimeError(f"the bare loop ended with exit code {process.exitcode}")
    return time.perf_counter() - start


def bare_loop(config: RunConfig, store: Store, work: ModelWork) -> None:
    """Every unit after the other, with one thread, as a worker of one CPU has."""
    import torch

    torch.set_num_threads(1)
    worker = Worker(store, work.plan.resolved, WorkerOptions.of(config, work.plan.resolved.config))
    for block in work.blocks():
        (report,) = worker(read_unit(block, store)).to_pylist()
        if report["error"]:
            raise RuntimeError(report["error"])


def cost_table(bench: Bench, runs: Runs, geometry: str) -> None:
    """Seconds of one core per 1,000 samples of each task."""
    config = runs.config(geometry, 1, tasks=list(LENGTHS))
    store = runs.prepared(config)
    in_own_process(config, store)
    for task in config.tasks:
        runtime = store.read(store.runtime(geometry, task, "float32"), RUNTIME)
        rows = [row for row in runtime.to_pylist() if row["stage"] == "method"]
        samples = sum(row["batch"] for row in rows)
        seconds = sum(row["wall_s"] for row in rows)
        tokens = sum(row["batch"] * row["length"] for row in rows)
        bench.row(
            what="cost",
            geometry=geometry,
            task=task,
            methods=METHODS,
            seconds_per_1000_samples=1000 * seconds / samples,
            seconds_per_token=seconds / tokens,
        )


def schedule(bench: Bench, found: Simulated, gpus: int) -> None:
    bench.row(
        what="simulation",
        gpus=gpus,
        makespan_hours=found.makespan_s / 3600,
        utilisation=found.utilisation,
        longest_tail_hours=found.tail_s / 3600,
        bound_by=found.last,
        lower_bound_hours=found.lower_bound_s / 3600,
    )
    bench.ratio(f"paper on {gpus} GPUs, makespan over bound", found.makespan_s / found.lower_bound_s, 1.25, "lower")


def _demo_tokenizer(family: str) -> str:
    from evaluation.benchmark.demo import model_dir

    return str(model_dir(family))


def _random_rows(task: str, n: int) -> list[dict[str, Any]]:
    draw = random.Random(0)
    rows = []
    for i in range(n):
        length = draw.randint(*LENGTHS[task])
        ids = [draw.randrange(5, 60) for _ in range(length)]
        marks = [False] * length
        rows.append(
            {
                "sample_id": f"{task}{i:05d}",
                "input_ids": ids,
                "position": length - 1,
                "target_id": 7,
                "foil_id": 8,
                "evidence_mask": marks,
                "special_mask": marks,
                "scope_mask": None,
                "length": length,
            }
        )
    return rows


if __name__ == "__main__":
    main()
