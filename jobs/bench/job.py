"""What the Ray path costs over a bare loop, what a second worker brings, and how long the whole paper would take.

The bare loop is the worker itself, called in a process of its own on the same units, with the same reads and commits.
Whole runs count from the plan to the last manifest, with the imports and the loading of the model on either side; only
joining or starting Ray itself is left out, and reported. Steady is the time from the first commit to the last.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from evaluation.schema import RUNTIME, VIEW
from jobs.bench.harness import Bench, device_name, paired_ratio, parser, summary
from jobs.bench.simulation import Relative, Simulated, paper, paper_jobs, simulate
from jobs.bench.slow_store import SlowStore
from jobs.cluster.pools import connect
from jobs.commands.plan_forwards import forwards
from jobs.config import NodesConfig, RunConfig
from jobs.methods import METHODS
from jobs.plan.cells import make_plan
from jobs.plan.geometries import GEOMETRIES
from jobs.plan.models import load_tokenizer, tokenizer_key
from jobs.stages.attribute import ModelWork, attribute, missing_work
from jobs.stages.attribute.worker import Worker, WorkerOptions
from jobs.store import Ledger, Store
from jobs.store.artifacts import views_of

OVERHEAD_TARGET = 1.10
OVERHEAD_METHODS = ["attnlrp", "gradient_x_input"]
LENGTHS = {"ra": (4, 8), "sva": (8, 40), "qa": (120, 260)}  # tokens, fewest and most, as in the published data
OVERHEAD_ROWS = {"qa": 20}
COST_ROWS = {"ra": 100, "sva": 40, "qa": 4}
#: Eight GPUs of each kind that jobs/deploy starts, the smaller ones slow at float64.
MIXED = [
    NodesConfig(count=8, gpus=1, labels={"gpu-memory": "24gb", "float64": "slow"}),
    NodesConfig(count=8, gpus=1, labels={"gpu-memory": "80gb", "float64": "fast"}),
]


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    options = parser("job", __doc__ or "")
    options.add_argument("--repeats", type=int, help="default 3; quick 1")
    options.add_argument("--geometry", action="append", choices=sorted(GEOMETRIES), help="for the cost table; repeat")
    options.add_argument("--latency-ms", type=float, help="also with so much added to every request of the store")
    chosen = options.parse_args(arguments)
    bench = Bench("job", device_name("cpu"))
    repeats = chosen.repeats or (1 if chosen.quick else 3)
    relative: Relative = {}
    with tempfile.TemporaryDirectory(prefix="closelook-bench-") as folder:
        runs = Runs(Path(folder), chosen.quick)
        start = time.perf_counter()
        connect(runs.config("gpt2", 1, OVERHEAD_ROWS))
        bench.row(what="start of a local Ray", seconds=time.perf_counter() - start)
        overhead(bench, runs, repeats, (chosen.latency_ms or 0) / 1000)
        for geometry in chosen.geometry or ["bert-base", "gpt2"]:
            relative |= cost_table(bench, runs, geometry)
    for gpus in (8, 64):
        schedule(bench, simulate(paper_jobs(relative), [NodesConfig(gpus=gpus)]), f"{gpus} GPUs")
    anywhere = paper("ray.precisions={}")  # for comparison: nobody runs it
    for float64, config in (("where it is fast", paper()), ("anywhere", anywhere)):
        precisions = [config.ray.needs((dtype,)) for dtype in config.ray.precisions]
        mixed = simulate(paper_jobs(relative, config), MIXED, precisions)
        schedule(bench, mixed, f"16 mixed GPUs, float64 {float64}", promised=config is not anywhere)
    return bench.finish(chosen)


class Runs:
    """Runs over random tokens, each under a root of its own."""

    def __init__(self, folder: Path, quick: bool) -> None:
        self._folder, self.quick, self._count = folder, quick, 0

    def config(
        self, geometry: str, workers: int, rows: Mapping[str, int], methods: Sequence[str] = OVERHEAD_METHODS
    ) -> RunConfig:
        """A run over `rows` samples of each task, a few batches a shard."""
        self._count += 1
        family = GEOMETRIES[geometry].family
        model = {"name": geometry, "id": f"random/{geometry}", "tokenizer": _demo_tokenizer(family)}
        if self.quick:
            model["id"] = f"demo/{family}"
        return RunConfig.model_validate(
            {
                "name": "bench",
                "root": str(self._folder / str(self._count)),
                "device": "cpu",
                "tasks": {
                    task: {"source": "demo", "limit": min(n, 8) if self.quick else n} for task, n in rows.items()
                },
                "models": [{**model, "workers": [workers, workers]}],
                "methods": methods,
                "token_budget": 512,
                "shard_rows": 2,
            }
        )

    def prepared(self, config: RunConfig, latency_s: float = 0.0) -> Store:
        store = Store(config.root)
        key = tokenizer_key(load_tokenizer(config.models[0]))
        for task, settings in config.tasks.items():
            fewest, most = LENGTHS[task]
            lengths = (min(fewest, 30), min(most, 40)) if self.quick else (fewest, most)  # demo models are short
            rows = _random_rows(task, settings.limit or 1, lengths)
            store.write_shard(f"{views_of(key, task).folder}/0.parquet", pa.Table.from_pylist(rows, schema=VIEW), VIEW)
            store.write_manifest(views_of(key, task).name, {"rows": len(rows)})
        return SlowStore(config.root, latency_s) if latency_s else store


@dataclass(frozen=True)
class Timed:
    """Seconds of one run: all of it, and from the first commit of a shard to the last."""

    whole_s: float
    steady_s: float

    @classmethod
    def of(cls, whole_s: float, store: Store) -> Timed:
        if store.files("relevance/rejects", recursive=True):
            raise RuntimeError("the benchmark's run rejected rows")
        commits = [store.modified_s(path) or 0.0 for path in store.files("relevance", recursive=True)]
        return cls(whole_s, max(commits) - min(commits))


def overhead(bench: Bench, runs: Runs, repeats: int, latency_s: float = 0.0) -> None:
    """The overhead of Ray: the same units by a bare loop, by Ray with one worker, and by Ray with two, in turn.

    With a latency also by one worker whose store, and the driver's, takes so much longer for every request.
    """
    ways = {"bare loop": (0, 0.0), "ray, one worker": (1, 0.0), "ray, two workers": (2, 0.0)}
    slow = f"ray, one worker, {1000 * latency_s:g} ms a request"
    ways |= {slow: (1, latency_s)} if latency_s else {}
    seconds: dict[str, list[Timed]] = {name: [] for name in ways}
    for _ in range(repeats):
        for (name, timed), (workers, added_s) in zip(seconds.items(), ways.values(), strict=True):
            config = runs.config("gpt2", workers or 1, OVERHEAD_ROWS)
            store = runs.prepared(config, added_s)
            whole_s = by_ray(config, store) if workers else in_own_process(config, store)
            timed.append(Timed.of(whole_s, store))
            print(f"{name}: {timed[-1].whole_s:.1f} s, steady {timed[-1].steady_s:.1f} s", flush=True)
    whole = {name: [one.whole_s for one in timed] for name, timed in seconds.items()}
    steady = {name: [one.steady_s for one in timed] for name, timed in seconds.items()}
    for name in seconds:
        bench.row(what=name, geometry="gpt2", seconds=summary(whole[name]), steady_seconds=summary(steady[name]))
    bare, one, two, *_ = seconds
    if latency_s:
        ratio = paired_ratio(steady[slow], steady[bare])["median"]
        bench.ratio(f"{slow}, over bare loop, steady", ratio, OVERHEAD_TARGET, "lower", geometry="gpt2")
    for kind, of_kind in (("whole run", whole), ("steady", steady)):
        ratio = paired_ratio(of_kind[one], of_kind[bare])["median"]
        bench.ratio(f"ray over bare loop, {kind}", ratio, OVERHEAD_TARGET, "lower", geometry="gpt2")
        ratio = paired_ratio(of_kind[one], of_kind[two])["median"]
        bench.ratio(f"two workers over one, {kind}", ratio, 1.0, "higher", geometry="gpt2", cores=os.cpu_count())


def by_ray(config: RunConfig, store: Store) -> float:
    """Wall seconds of the stage. Raises RuntimeError when it does not complete."""
    start = time.perf_counter()
    if not attribute(config, store).complete:
        raise RuntimeError("the benchmark's run did not complete")
    return time.perf_counter() - start


def in_own_process(config: RunConfig, store: Store) -> float:
    """Wall seconds of the bare loop in a fresh process, its imports and the model's loading included, as with Ray."""
    (work,) = missing_work(config, Ledger(store), make_plan(config, store))
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
        (report,) = worker(block()).to_pylist()
        if report["error"] or report["rejects"] or report["result"]:
            raise RuntimeError(report["error"] or report["result"] or "the benchmark's run rejected rows")


def cost_table(bench: Bench, runs: Runs, geometry: str) -> Relative:
    """One core's seconds per 1,000 samples of the paper's methods, by task and pass.

    Returns all passes over the gradients' one, by task.
    """
    family = GEOMETRIES[geometry].model_family
    wanted = [method.name for method in paper().methods]
    methods = [name for name in wanted if not METHODS[name].missing(family.capabilities)]
    gradients = [name for name in methods if METHODS[name].rules is not None]  # all in one pass
    of_gradients = METHODS[gradients[0]].pass_name
    config = runs.config(geometry, 1, COST_ROWS, methods)
    store = runs.prepared(config)
    in_own_process(config, store)
    relative: Relative = {}
    for task in config.tasks:
        table = store.read(store.runtime(geometry, task, "float32"), RUNTIME)
        rows = [row for row in table.to_pylist() if row["stage"] == "method"]
        seconds = {name: sum(row["wall_s"] for row in rows if row["method"] == name) for name in _passes(methods)}
        of_one = [row for row in rows if row["method"] == of_gradients]
        samples = sum(row["batch"] for row in of_one)
        tokens = sum(row["batch"] * row["length"] for row in of_one)
        for name, spent in [*seconds.items(), ("all", sum(seconds.values()))]:
            measured = {"seconds_per_1000_samples": 1000 * spent / samples, "seconds_per_token": spent / tokens}
            bench.row(what="cost", geometry=geometry, task=task, method=name, **measured)
        if not runs.quick:
            cost = forwards(config, gradients, tokens / samples)
            operations = 2.0 * GEOMETRIES[geometry].block_parameters * tokens * cost
            gflops = operations / seconds[of_gradients] / 1e9
            bench.row(what="operations of the gradients' pass", geometry=geometry, task=task, gflops=gflops)
        relative[family.kind.name, task] = sum(seconds.values()) / seconds[of_gradients]
    return relative


def _passes(methods: Sequence[str]) -> list[str]:
    return sorted({METHODS[name].pass_name for name in methods})


def schedule(bench: Bench, simulated: Simulated, nodes: str, promised: bool = True) -> None:
    bench.row(
        what="simulation",
        nodes=nodes,
        makespan_hours=simulated.makespan_s / 3600,
        busy_gpu_hours=simulated.busy_s / 3600,
        utilisation=simulated.utilisation,
        longest_tail_hours=simulated.tail_s / 3600,
        bound_by=f"{simulated.last} on {simulated.last_workers} GPUs",
        lower_bound_hours=simulated.lower_bound_s / 3600,
    )
    if promised:
        over_bound = simulated.makespan_s / simulated.lower_bound_s
        bench.ratio(f"paper on {nodes}, makespan over bound", over_bound, 1.25, "lower")


def _demo_tokenizer(family: str) -> str:
    from evaluation.benchmark.demo import model_dir

    return str(model_dir(family))


def _random_rows(task: str, n: int, lengths: tuple[int, int]) -> list[dict[str, Any]]:
    draw = random.Random(0)
    rows = []
    for i in range(n):
        length = draw.randint(*lengths)
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
