"""Prune: head relevance becomes curves of accuracy against heads removed, one pool of workers a model and precision.

The driver ranks the heads of every method from its complete heads cell and cuts the curves into units; a worker draws
the curves of a unit over the pruning subset and commits them as one shard. Curves are keyed by the heads they came
from: a run draws what is missing, and curves of another key are removed when their successors are complete.
"""

from __future__ import annotations

import hashlib
import json
import time
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
from jobs.config import PruneConfig, RunConfig
from jobs.inputs import read_unit
from jobs.manifests import versions
from jobs.plan import ModelPlan, make_plan, state
from jobs.pools import cluster_slots, connect, prepare_dataset, share_of, uses_gpu
from jobs.stage import StageSummary
from jobs.store import Cell, Store
from jobs.workers.progress import Progress
from jobs.workers.pruner import Pruner, PruningUnit

VERSION = 1  # raised when curves change: stored ones of older versions are stale
UNIT_TOKENS = 20_000_000  # of the forwards that one commit may lose
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
    for pool in pools.values():
        failures += _draw(config, settings, store, pool)
    drawn = sum(is_drawn(store, curves) for curves in todo)
    lines = (f"{drawn} sets of curves drawn, {len(wanted) - len(todo)} were up to date",)
    return StageSummary("prune", drawn, len(wanted) - len(todo), tuple(dict.fromkeys(failures)), lines)


def wanted_curves(config: RunConfig, settings: PruneConfig, model: ModelPlan) -> Iterator[CurveSet]:
    """A set for every method with planned contrastive heads, and one of random orders beside them."""
    places: dict[tuple[str, str], Cell] = {}
    for planned in model.cells:
        cell = planned.cell
        contrastive = any(request.explanation == "contrastive" for request in planned.requests)
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


def _draw(config: RunConfig, settings: PruneConfig, store: Store, pool: list[CurveSet]) -> list[str]:
    """Draw what is missing of curve sets of one model and precision; returns the failures."""
    units = {curves.name: list(_units(config, settings, store, curves)) for curves in pool}
    blocks = [
        _block(config, store, curves, unit)
        for curves in pool
        for unit in units[curves.name]
        if not store.exists(unit.path)
    ]
    failures = []
    name = f"{pool[0].model.name} {pool[0].heads.dtype}"
    with Progress({name: len(blocks)}, stage="prune", unit="units") as progress:
        progress.begin(name)
        for report in _reports(config, store, pool[0], blocks) if blocks else ():
            progress.advance(name, 1, report["tokens"])
            if report["error"]:
                failures.append(report["error"])
            if report["fatal"]:
                break
    for curves in pool:
        if all(store.exists(unit.path) for unit in units[curves.name]):
            _complete(config, store, curves, len(units[curves.name]))
    return failures


def _units(config: RunConfig, settings: PruneConfig, store: Store, curves: CurveSet) -> Iterator[PruningUnit]:
    """The curves in runs of about UNIT_TOKENS tokens, at least one curve each."""
    model = curves.model
    ranked = _ranked(config, settings, store, curves)
    points = -(-len(ranked[0].heads) // settings.step) + 1
    lengths = model.inputs[curves.heads.task].lengths[subset(config, model, curves.heads.task)]
    size = max(1, UNIT_TOKENS // max(1, points * int(lengths.sum())))
    budget = FORWARD_FACTOR * (model.resolved.config.token_budget or config.token_budget)
    for index, start in enumerate(range(0, len(ranked), size)):
        path = f"{curves.folder(store)}/{curves.shard(index)}"
        title = f"{curves.name}.{index:03d}"
        yield PruningUnit(title, path, tuple(ranked[start : start + size]), settings.step, budget)


def _ranked(config: RunConfig, settings: PruneConfig, store: Store, curves: CurveSet) -> list[Curve]:
    table = store.read_cell(curves.heads, HEADS)
    if curves.method == RANDOM:
        return random_curves(len(table["relevance"][0]), settings.random_runs, config.seed)
    table = table.filter(pc.equal(table["explanation"], "contrastive"))
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


def _reports(config: RunConfig, store: Store, first: CurveSet, blocks: list[pa.Table]) -> Iterator[dict[str, Any]]:
    """The Ray Data pipeline of one model and precision: read the subset, draw a unit's curves, report."""
    connect(config)
    import ray.data

    model = first.model.resolved
    on_gpu = uses_gpu(config)
    share = share_of(model.config, on_gpu)
    workers = cluster_slots(config, on_gpu).take(share, model.config.workers[0], model.config.workers[1])
    if workers is None:
        message = f"model {model.config.name} asks for more workers than the cluster has room for"
        yield {"error": message, "fatal": True, "tokens": 0}
        return
    dataset = (
        ray.data.from_arrow(blocks)
        .map_batches(partial(read_unit, store=store), batch_size=1, batch_format="pyarrow", num_cpus=0)
        .map_batches(
            Pruner,
            fn_constructor_args=[store, model, first.heads.dtype, config.seed, config.max_attempts],
            compute=ray.data.ActorPoolStrategy(size=min(len(workers), len(blocks))),
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
