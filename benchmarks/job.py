"""`closelook bench job`: Ray's overhead over a bare loop, the gain of a second worker, and the hours of the paper.

The bare loop calls the worker in a process of its own on the same units, with the same reads and commits. The time of a
whole run is that from the plan to the last manifest, imports and loading of the model included; the start of Ray itself
is not included, and reported apart. Steady time is that from the first commit to the last. The hours of the paper are
simulated from measured costs.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.parts import harness
from benchmarks.parts.harness import SCRATCH, Bench, interleave, parser
from benchmarks.parts.runs import small_run, write_views
from benchmarks.parts.simulation import Relative, paper_jobs, simulate
from benchmarks.parts.stores.object_store import SlowStore
from closelook.evaluation.benchmark.demo import model_dir
from closelook.evaluation.schema import RUNTIME
from closelook.jobs.bench.record import seconds_of, summary
from closelook.jobs.cluster.pools import connect
from closelook.jobs.config import NodesConfig, RunConfig
from closelook.jobs.geometries import GEOMETRIES
from closelook.jobs.methods import METHODS
from closelook.jobs.plan.cells import make_plan
from closelook.jobs.plan.node import Run
from closelook.jobs.stages.compute import compute, works_of
from closelook.jobs.store import Ledger, Store

OVERHEAD_TARGET = 1.10
OVERHEAD_METHODS = ["attnlrp", "gradient_x_input"]
LENGTHS = {"ra": (4, 8), "sva": (8, 40), "qa": (120, 260)}  # fewest and most tokens, as in the published data
OVERHEAD_ROWS = {"qa": 20}  # samples by task
COST_ROWS = {"ra": 100, "sva": 40, "qa": 4}
#: Eight GPUs of each kind that jobs/deploy starts; the smaller kind is slow at float64.
_KINDS = ({"gpu-memory": "24gb", "float64": "slow"}, {"gpu-memory": "80gb", "float64": "fast"})
MIXED = [NodesConfig(count=8, gpus=1, labels=labels) for labels in _KINDS]


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Run all parts; see `--help`. Returns the result as JSON."""
    options = parser("job", __doc__)
    options.number("--repeats", 3, "of each run", quick=1)
    options.geometries("bert-base", "gpt2")
    latency = "also with so much added to every request of the store"
    options.add_argument("--latency-ms", type=float, default=0.0, help=latency)
    bench = options.begin(arguments)
    chosen = bench.chosen
    relative: Relative = {}
    with tempfile.TemporaryDirectory(prefix=SCRATCH) as folder:
        runs = Runs(Path(folder), chosen.quick)
        started_s = seconds_of(partial(connect, runs.config("gpt2", 1, OVERHEAD_ROWS)))
        bench.row(what="start of a local Ray", seconds=started_s)
        overhead(bench.about(geometry="gpt2"), runs, chosen.repeats, chosen.latency_ms / 1000)
        for geometry in chosen.geometry:
            relative |= cost_table(bench.about(geometry=geometry), runs)
    clusters = {f"{gpus} GPUs": [NodesConfig(gpus=gpus)] for gpus in (8, 64)}
    clusters["16 mixed GPUs, float64 where it is fast"] = MIXED
    for title, nodes in clusters.items():
        schedule(bench, relative, nodes, title)
    return bench.finish()


class Runs:
    """Makes the configs and stores of runs over random tokens, each with a root of its own."""

    def __init__(self, folder: Path, quick: bool) -> None:
        self._folder, self.quick, self._count = folder, quick, 0

    def config(
        self, geometry: str, workers: int, rows: Mapping[str, int], methods: Sequence[str] = OVERHEAD_METHODS
    ) -> RunConfig:
        """The config of a run over `rows` samples of each task, with a few batches in a shard."""
        self._count += 1
        family = GEOMETRIES[geometry].family
        model = {
            "name": geometry,
            "id": f"demo/{family}" if self.quick else f"random/{geometry}",
            "tokenizer": str(model_dir(family)),
            "workers": [workers, workers],
        }
        limits = {task: min(count, 8) if self.quick else count for task, count in rows.items()}
        root = str(self._folder / str(self._count))
        return small_run(root, limits, [model], methods, token_budget=512, shard_rows=2)

    def prepared(self, config: RunConfig, latency_s: float = 0.0) -> Store:
        """The store of a run, with samples of random tokens; every request takes `latency_s` longer."""
        store = Store(config.root)
        for task, settings in config.tasks.items():
            fewest, most = LENGTHS[task]
            lengths = (min(fewest, 30), min(most, 40)) if self.quick else (fewest, most)  # demo models are short
            rows = settings.limit or 1
            write_views(store, config.models[0], task, rows, lengths, shard_rows=rows)
        return SlowStore(config.root, latency_s) if latency_s else store


def steady_s(store: Store) -> float:
    """The seconds from the first commit of a shard to the last. Raises RuntimeError for a run that rejected rows."""
    if store.files("relevance/rejects", recursive=True):
        raise RuntimeError("the benchmark's run rejected rows")
    commits = [store.modified_s(path) or 0.0 for path in store.files("relevance", recursive=True)]
    return max(commits) - min(commits)


def overhead(bench: Bench, runs: Runs, repeats: int, latency_s: float) -> None:
    """Time the same units by a bare loop, by Ray with one worker, and by Ray with two, in turn.

    With `latency_s` also by Ray with one worker and a store whose requests take that much longer.
    """
    bare, single, double = "bare loop", "ray, one worker", "ray, two workers"
    variants = {bare: (0, 0.0), single: (1, 0.0), double: (2, 0.0)}
    slow = f"ray, one worker, {1000 * latency_s:g} ms a request"
    if latency_s:
        variants[slow] = (1, latency_s)
    steady: dict[str, list[float]] = {name: [] for name in variants}

    def timed(name: str, workers: int, added_s: float) -> float:
        config = runs.config("gpt2", workers or 1, OVERHEAD_ROWS)
        store = runs.prepared(config, added_s)
        whole_s = by_ray(config, store) if workers else in_own_process(config, store)
        steady[name].append(steady_s(store))
        return whole_s

    timings = {name: partial(timed, name, *variant) for name, variant in variants.items()}
    whole = interleave(timings, repeats, warmup=0)
    for name in variants:
        bench.row(what=name, seconds=summary(whole[name]), steady_seconds=summary(steady[name]))
    if latency_s:
        bench.paired(f"{slow}, over bare loop, steady", (steady[slow], steady[bare]), OVERHEAD_TARGET)
    for kind, seconds in (("whole run", whole), ("steady", steady)):
        bench.paired(f"ray over bare loop, {kind}", (seconds[single], seconds[bare]), OVERHEAD_TARGET)
        pair = seconds[single], seconds[double]
        bench.paired(f"two workers over one, {kind}", pair, 1.0, "higher", cores=os.cpu_count())


def by_ray(config: RunConfig, store: Store) -> float:
    """The wall seconds of the stage with Ray. Raises RuntimeError if it does not complete."""
    start = time.perf_counter()
    if not compute(config, store, "attribute").complete:
        raise RuntimeError("the benchmark's run did not complete")
    return time.perf_counter() - start


def in_own_process(config: RunConfig, store: Store) -> float:
    """The wall seconds of the bare loop in a new process, with imports and the loading of the model, as with Ray."""
    return seconds_of(partial(harness.in_own_process, bare_loop, config, store))


def bare_loop(config: RunConfig, store: Store) -> None:
    """Compute all units in turn in one thread, as a worker with one CPU does."""
    import torch

    torch.set_num_threads(1)
    (missing,) = works_of(Run(config, make_plan(config, store), Ledger(store)), "attribute")
    work = missing.work()
    worker = work.worker(*work.arguments)
    for table in work.tables():
        (report,) = worker(table).to_pylist()
        if report["error"] or report["rejects"] or report["result"]:
            raise RuntimeError(report["error"] or report["result"] or "the benchmark's run rejected rows")


def cost_table(bench: Bench, runs: Runs) -> Relative:
    """Measure what each pass of the paper's methods costs on one core: for each task a row of seconds by pass.

    The seconds are for 1,000 samples. Returns the seconds of all passes divided by those of the pass in which all
    methods with rules are computed, by kind of model and task.
    """
    geometry = GEOMETRIES[bench.title]
    family = geometry.model_family
    records = [METHODS[entry.name] for entry in RunConfig.load("paper").methods]
    methods = [record for record in records if not record.missing(family.capabilities)]
    gradients = [record for record in methods if record.rules is not None]  # all in one pass
    of_gradients = gradients[0].pass_name
    config = runs.config(geometry.name, 1, COST_ROWS, [record.name for record in methods])
    store = runs.prepared(config)
    in_own_process(config, store)
    relative: Relative = {}
    for task in config.tasks:
        table = store.read(store.runtime(geometry.name, task, "float32"), RUNTIME).to_pylist()
        seconds = dict.fromkeys(sorted({record.pass_name for record in methods}), 0.0)
        samples = tokens = 0
        for row in table:
            if row["stage"] != "method":
                continue
            if row["method"] in seconds:
                seconds[row["method"]] += row["wall_s"]
            if row["method"] == of_gradients:
                samples += row["batch"]
                tokens += row["batch"] * row["length"]
        total = sum(seconds.values())
        for name, spent in {**seconds, "all": total}.items():
            measured = {"seconds_per_1000_samples": 1000 * spent / samples, "seconds_per_token": spent / tokens}
            bench.row(what="cost", task=task, method=name, **measured)
        relative[family.kind.name, task] = total / seconds[of_gradients]
    return relative


def schedule(bench: Bench, relative: Relative, nodes: Sequence[NodesConfig], title: str) -> None:
    """Simulate the schedule of the paper's run on `nodes`; compare its duration (makespan) with the lower bound."""
    config = RunConfig.load("paper")
    precisions = [config.ray.needs((dtype,)) for dtype in config.ray.precisions]
    simulated = simulate(paper_jobs(relative, config), nodes, precisions)
    hours = {
        "makespan_hours": simulated.makespan_s / 3600,
        "busy_gpu_hours": simulated.busy_s / 3600,
        "longest_tail_hours": simulated.tail_s / 3600,
        "lower_bound_hours": simulated.lower_bound_s / 3600,
    }
    bound_by = f"{simulated.last} on {simulated.last_workers} GPUs"
    bench.row(what="simulation", nodes=title, **hours, utilisation=simulated.utilisation, bound_by=bound_by)
    over_bound = simulated.makespan_s / simulated.lower_bound_s
    bench.ratio(f"paper on {title}, makespan over bound", over_bound, 1.25, "lower")
