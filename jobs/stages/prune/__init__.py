"""Prune: head relevance becomes curves of accuracy against heads removed, one pool of workers a model and precision.

The driver ranks the heads of every method from its complete heads cell and cuts the curves into shards; a worker draws
the curves of a unit of shards together over the pruning subset and commits each shard. Curves are keyed by the heads
they came from: a run draws what is missing, and curves of another key are removed when their successors are complete.
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
import uuid
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from evaluation.schema import HEADS
from evaluation.scoring.curves import RANDOM, Curve, random_curves, ranked_curves
from jobs.cluster.attempts import forget_loading
from jobs.cluster.pools import Share, Slots, cluster_slots, connect, prepare_dataset, share_of, uses_gpu
from jobs.cluster.progress import Progress
from jobs.config import PruneConfig, RunConfig
from jobs.plan.cells import ModelPlan, State, make_plan, state
from jobs.plan.inputs import read_unit
from jobs.stages.attribute.manifests import versions
from jobs.stages.prune.pruner import Pruner, PruningUnit, Shard
from jobs.stages.summary import StageSummary
from jobs.store import Cell, Store
from lrp_core.explained import CONTRASTIVE

VERSION = 1  # raised when curves change: stored ones of older versions are stale
UNIT_TOKENS = 20_000_000  # of the forwards that a lost worker may cost
FORWARD_FACTOR = 8  # how many times the tokens of attribution fit into a forward without gradients


@dataclass(frozen=True)
class CurveSet:
    """All curves of one method on one task: what is keyed, completed and replaced together."""

    model: ModelPlan
    method: str
    heads: Cell  # what the heads are ranked by; random orders take only their number from it
    key: str

    @property
    def name(self) -> str:
        """Of the manifest. Curves replace their predecessors, so the key is not part of it."""
        return f"pruning.{self.heads.model}.{self.heads.task}.{self.heads.dtype}.{self.method}"

    def shard(self, unit: int) -> str:
        return f"{self.method}-{self.key[:12]}-{unit:03d}.parquet"

    def folder(self, store: Store) -> str:
        return store.pruning(self.heads.model, self.heads.task, self.heads.dtype)


@dataclass(frozen=True)
class Work:
    """What is missing of one model and precision: a row for `read_unit` for each unit."""

    first: CurveSet  # any of them
    blocks: list[pa.Table]

    @property
    def name(self) -> str:
        return f"{self.first.model.name} {self.first.heads.dtype}"


def prune(config: RunConfig, store: Store) -> StageSummary:
    """Draw every configured curve whose heads cell is complete and that is not drawn yet."""
    settings = config.prune or PruneConfig()
    plan = make_plan(config, store)
    wanted = [curves for model in plan.models for curves in wanted_curves(config, settings, model)]
    todo = [curves for curves in wanted if not is_drawn(store, curves)]
    pools: dict[tuple[str, str], list[CurveSet]] = defaultdict(list)
    failures = list(plan.failures.values())
    for curves in todo:
        if state(store, curves.heads) == "done":
            pools[curves.heads.model, curves.heads.dtype].append(curves)
        else:
            failures.append(f"{curves.heads} is not complete: run `closelook attribute`")
    failures += _draw_all(config, settings, store, list(pools.values()))
    drawn = sum(is_drawn(store, curves) for curves in todo)
    lines = (f"{drawn} sets of curves drawn, {len(wanted) - len(todo)} were up to date",)
    return StageSummary("prune", drawn, len(wanted) - len(todo), tuple(dict.fromkeys(failures)), lines)


def wanted_curves(config: RunConfig, settings: PruneConfig, model: ModelPlan) -> Iterator[CurveSet]:
    """A set for every method with planned contrastive heads, and one of random orders beside them."""
    places: dict[tuple[str, str], Cell] = {}
    for planned in model.cells:
        cell = planned.cell
        contrastive = any(request.explanation == CONTRASTIVE.name for request in planned.requests)
        if cell.product != "heads" or not contrastive or cell.task not in (settings.tasks or (cell.task,)):
            continue
        places.setdefault((cell.task, cell.dtype), cell)
        if cell.method in (settings.methods or (cell.method,)):
            yield CurveSet(model, cell.method, cell, _key(cell.key, settings.poolings, settings.orders, settings.step))
    for (task, dtype), cell in places.items() if settings.random_runs else ():
        drawn_on = [model.inputs[task].digest, subset(config, model, task).tolist()]
        run_by = [model.resolved.identity, model.resolved.config.attn, dtype]
        key = _key(*drawn_on, *run_by, config.seed, settings.random_runs, settings.step)
        yield CurveSet(model, RANDOM, cell, key)


def _key(*numbers: Any) -> str:
    return hashlib.sha256(json.dumps([VERSION, *numbers]).encode()).hexdigest()


def subset(config: RunConfig, model: ModelPlan, task: str) -> np.ndarray:
    """The pruning subset, the same for every method: indices into the views of those of its samples with a foil."""
    inputs = model.inputs[task]
    rows = inputs.subset((config.heads or {}).get(task), config.seed)
    return rows[inputs.table["foil_id"].is_valid().to_numpy()[rows]]


def is_drawn(store: Store, curves: CurveSet) -> bool:
    record = store.manifest(curves.name)
    return record is not None and record["key"] == curves.key


def state_of(store: Store, curves: CurveSet) -> State:
    if is_drawn(store, curves):
        return "done"
    begun = f"{curves.folder(store)}/{curves.method}-{curves.key[:12]}-"
    return "partial" if any(path.startswith(begun) for path in store.files(curves.folder(store))) else "missing"


def _draw_all(config: RunConfig, settings: PruneConfig, store: Store, pools: list[list[CurveSet]]) -> list[str]:
    """Draw what is missing of every pool, models at once as far as their workers fit; returns the failures."""
    shards = {curves.name: list(_shards(config, settings, store, curves)) for pool in pools for curves in pool}
    works = []
    for pool in pools:
        lacking = [(c, shard) for c in pool for shard in shards[c.name] if not store.exists(shard.path)]
        works.append(Work(pool[0], [_block(config, store, *unit) for unit in _units(config, settings, lacking)]))
    works = [work for work in works if work.blocks]
    failures: list[str] = []
    if works:
        connect(config)
        on_gpu = uses_gpu(config)
        slots = cluster_slots(config, on_gpu)
        with Progress({work.name: len(work.blocks) for work in works}, stage="prune", unit="units") as progress:
            at_once = threading.BoundedSemaphore(config.ray.max_models or len(works))

            def draw(work: Work) -> None:
                with at_once:
                    failures.extend(_draw(config, store, work, slots, on_gpu, progress))

            threads = [threading.Thread(target=draw, args=(work,), daemon=True) for work in works]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
    for pool in pools:
        for curves in pool:
            if all(store.exists(shard.path) for shard in shards[curves.name]):
                _complete(config, store, curves, len(shards[curves.name]))
    return failures


def _draw(config: RunConfig, store: Store, work: Work, slots: Slots, on_gpu: bool, progress: Progress) -> list[str]:
    """Draw one model's units as soon as its workers fit; returns the failures."""
    model = work.first.model.resolved.config
    share = share_of(model, on_gpu)
    if slots.room(share) < model.workers[0]:
        return [f"model {model.name} asks for more workers than the cluster has room for"]
    while (taken := slots.take(share, model.workers[0], min(model.workers[1], len(work.blocks)))) is None:
        slots.wait(timeout_s=1)
    failures = []
    progress.begin(work.name)
    try:
        for report in _reports(config, store, work, share, len(taken)):
            store.check()
            progress.advance(work.name, 1, report["tokens"])
            if report["error"]:
                failures.append(report["error"])
            if report["fatal"]:
                break
    except Exception as error:  # whatever Ray raises ends this model, not the others
        failures.append(f"{work.name}: {type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}")
    finally:
        slots.give_back(share, taken)
    forget_loading(store, model.name)
    return failures


def _shards(config: RunConfig, settings: PruneConfig, store: Store, curves: CurveSet) -> Iterator[Shard]:
    """The curves in runs of about UNIT_TOKENS tokens, at least one curve each; none without samples."""
    lengths = curves.model.inputs[curves.heads.task].lengths[subset(config, curves.model, curves.heads.task)]
    if not len(lengths):
        return
    ranked = _ranked(config, settings, store, curves)
    points = -(-len(ranked[0].heads) // settings.step) + 1
    tokens = max(1, points * int(lengths.sum()))  # of one curve
    size = max(1, UNIT_TOKENS // tokens)
    for index, start in enumerate(range(0, len(ranked), size)):
        part = tuple(ranked[start : start + size])
        yield Shard(f"{curves.folder(store)}/{curves.shard(index)}", part, len(part) * tokens)


def _units(
    config: RunConfig, settings: PruneConfig, lacking: list[tuple[CurveSet, Shard]]
) -> Iterator[tuple[CurveSet, PruningUnit]]:
    """Shards of one task together, of about UNIT_TOKENS tokens: their curves share forwards."""
    together: list[list[tuple[CurveSet, Shard]]] = []
    for curves, shard in sorted(lacking, key=lambda one: one[0].heads.task):  # stable: methods stay in order
        last = together[-1] if together else []
        fits = sum(one.tokens for _, one in last) + shard.tokens <= UNIT_TOKENS
        if last and fits and last[0][0].heads.task == curves.heads.task:
            last.append((curves, shard))
        else:
            together.append([(curves, shard)])
    for group in together:
        first = group[0][0]
        budget = FORWARD_FACTOR * (first.model.resolved.config.token_budget or config.token_budget)
        title = "pruning." + group[0][1].path.rpartition("/")[2].removesuffix(".parquet")
        yield first, PruningUnit(title, tuple(shard for _, shard in group), settings.step, budget)


def _ranked(config: RunConfig, settings: PruneConfig, store: Store, curves: CurveSet) -> list[Curve]:
    table = store.read_cell(curves.heads, HEADS)
    if curves.method == RANDOM:
        return random_curves(len(table["relevance"][0]), settings.random_runs, config.seed)
    table = table.filter(pc.equal(table["explanation"], CONTRASTIVE.name))
    relevance: dict[tuple[str, str], np.ndarray] = {}
    for pooling in settings.poolings:
        lists = table.filter(pc.equal(table["pooling"], pooling))["relevance"].combine_chunks()
        relevance[curves.method, pooling] = lists.flatten().to_numpy().reshape(len(lists), -1)
    return ranked_curves(relevance, settings.orders)


def _block(config: RunConfig, store: Store, curves: CurveSet, unit: PruningUnit) -> pa.Table:
    """A row for `read_unit`."""
    inputs = curves.model.inputs[curves.heads.task]
    rows = subset(config, curves.model, inputs.task)
    views = store.views(inputs.tokenizer, inputs.task)
    return pa.table({"task": [unit.to_json()], "views": [views], "rows": pa.array([rows], pa.list_(pa.int32()))})


def _reports(config: RunConfig, store: Store, work: Work, share: Share, workers: int) -> Iterator[dict[str, Any]]:
    """The Ray Data pipeline of one model and precision: read the subset, draw a unit's curves, report."""
    import ray.data

    model = work.first.model.resolved
    dataset = (
        ray.data.from_arrow(work.blocks)
        .map_batches(partial(read_unit, store=store), batch_size=1, batch_format="pyarrow", num_cpus=0)
        .map_batches(
            Pruner,
            fn_constructor_args=[
                store,
                model,
                work.first.heads.dtype,
                config.seed,
                config.max_attempts,
                uuid.uuid4().hex,
            ],
            compute=ray.data.ActorPoolStrategy(size=workers),
            batch_size=1,
            batch_format="pyarrow",
            num_gpus=share.gpus,
            num_cpus=share.cpus,
            label_selector=dict(share.labels) or None,
        )
    )
    prepare_dataset(dataset, f"prune-{model.config.name}", config)
    yield from dataset.iter_rows()


def _complete(config: RunConfig, store: Store, curves: CurveSet, units: int) -> None:
    """Write the manifest, then remove shards of other keys."""
    shards = [curves.shard(index) for index in range(units)]
    inputs = curves.model.inputs[curves.heads.task]
    record = {
        "state": "complete",
        "key": curves.key,
        "shards": shards,
        "heads": None if curves.method == RANDOM else curves.heads.name,
        "samples": len(subset(config, curves.model, inputs.task)),
        "model": {"identity": curves.model.resolved.identity, "id": curves.model.resolved.config.id},
        "inputs": {"tokenizer": inputs.tokenizer, "sha256": inputs.digest},
        "config": config.model_dump(mode="json"),
        "versions": versions(),
        "written": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
    store.write_manifest(curves.name, record)
    for path in store.files(curves.folder(store)):
        name = path.rsplit("/", 1)[-1]
        if name.startswith(f"{curves.method}-") and name not in shards:
            store.delete(path)
