"""Prune: head relevance becomes curves of accuracy against heads removed, one pool of workers a model and precision.

The driver ranks the heads of every method from its complete heads cell and cuts the curves into shards; a worker draws
the curves of a unit of shards together over the pruning subset and commits each shard. Curves are keyed by the heads
they came from: a run draws what is missing, and curves of another key are removed when their successors are complete.
"""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from evaluation.schema import HEADS, PRUNING
from evaluation.scoring.head_orders import RANDOM, RemovalOrder, random_curves, ranked_curves
from jobs.cluster.scheduler import Work, run_all
from jobs.config import PruneConfig, RunConfig
from jobs.plan.cells import make_plan
from jobs.plan.products.pruning import CurveSet, subset, wanted_curves
from jobs.plan.units import FORWARD_FACTOR
from jobs.stages.prune.pruner import Pruner, PruningUnit, Shard
from jobs.stages.summary import StageSummary
from jobs.store import Ledger, Store
from lrp_core.explained import CONTRASTIVE

UNIT_TOKENS = 20_000_000  # of the forwards that a lost worker may cost


def prune(config: RunConfig, store: Store) -> StageSummary:
    """Draw every configured curve whose heads cell is complete and that is not drawn yet."""
    settings = config.prune or PruneConfig()
    plan, ledger = make_plan(config, store), Ledger(store)
    wanted = [curves for model in plan.models for curves in wanted_curves(config, settings, model)]
    todo = [curves for curves in wanted if not ledger.is_done(curves.artifact)]
    for curves in todo:
        ledger.discard_damaged(curves.artifact)
    pools: dict[tuple[str, str], list[CurveSet]] = defaultdict(list)
    failures = list(plan.failures.values())
    for curves in todo:
        if ledger.is_done(curves.heads):
            pools[curves.heads.model, curves.heads.dtype].append(curves)
        else:
            failures.append(f"{curves.heads} is not complete: run `closelook attribute`")
    works = [_work(config, settings, ledger, pool) for pool in pools.values()]
    failures += run_all(config, store, works, stage="prune", unit="curves")
    drawn = sum(ledger.is_done(curves.artifact) for curves in todo)
    lines = (f"{drawn} sets of curves drawn, {len(wanted) - len(todo)} were up to date",)
    return StageSummary("prune", drawn, len(wanted) - len(todo), tuple(dict.fromkeys(failures)), lines)


def _work(config: RunConfig, settings: PruneConfig, ledger: Ledger, pool: Sequence[CurveSet]) -> Work:
    """The missing curves of a model in one precision; those that are whole then are complete."""
    first, model, store = pool[0], pool[0].model.resolved, ledger.store
    shards = {curves.artifact: list(_shards(config, settings, ledger, curves)) for curves in pool}
    lacking = [(c, shard) for c in pool for shard in shards[c.artifact] if not store.exists(shard.path)]
    units = list(_units(config, settings, lacking))

    def close() -> Sequence[str]:
        for curves in pool:
            if all(store.exists(shard.path) for shard in shards[curves.artifact]):
                _complete(config, ledger, curves, len(shards[curves.artifact]))
        return ()

    return Work(
        name=f"{first.model.name} {first.heads.dtype}",
        model=model.config,
        blocks=[partial(_block, config, *unit) for unit in units],
        worker=Pruner,
        arguments=(store, model, first.heads.dtype, config.seed, config.max_attempts, uuid.uuid4().hex),
        size=sum(len(unit.curves) for _, unit in units),
        dtypes=(first.heads.dtype,),
        on_end=close,
    )


def _shards(config: RunConfig, settings: PruneConfig, ledger: Ledger, curves: CurveSet) -> Iterator[Shard]:
    """The curves in runs of about UNIT_TOKENS tokens, at least one curve each; none without samples."""
    lengths = curves.model.inputs[curves.heads.task].lengths[subset(config, curves.model, curves.heads.task)]
    if not len(lengths):
        return
    ranked = _ranked(config, settings, ledger, curves)
    points = -(-len(ranked[0].heads) // settings.step) + 1
    tokens = max(1, points * int(lengths.sum()))  # of one curve
    size = max(1, UNIT_TOKENS // tokens)
    for index, start in enumerate(range(0, len(ranked), size)):
        part = tuple(ranked[start : start + size])
        yield Shard(f"{curves.artifact.folder}/{curves.artifact.shard(f'{index:03d}')}", part, len(part) * tokens)


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


def _ranked(config: RunConfig, settings: PruneConfig, ledger: Ledger, curves: CurveSet) -> list[RemovalOrder]:
    table = ledger.read(curves.heads, HEADS)
    if curves.method == RANDOM:
        return random_curves(len(table["relevance"][0]), settings.random_runs, config.seed)
    table = table.filter(pc.equal(table["explanation"], CONTRASTIVE.name))
    table = table.sort_by("sample_id")  # a mean does not depend on how samples were cut into units
    relevance: dict[tuple[str, str], np.ndarray] = {}
    for pooling in settings.poolings:
        lists = table.filter(pc.equal(table["pooling"], pooling))["relevance"].combine_chunks()
        relevance[curves.method, pooling] = lists.flatten().to_numpy().reshape(len(lists), -1)
    return ranked_curves(relevance, settings.orders)


def _block(config: RunConfig, curves: CurveSet, unit: PruningUnit) -> pa.Table:
    """The table of a unit."""
    inputs = curves.model.inputs[curves.heads.task]
    return inputs.unit(unit, subset(config, curves.model, inputs.task))


def _complete(config: RunConfig, ledger: Ledger, curves: CurveSet, units: int) -> None:
    inputs = curves.model.inputs[curves.heads.task]
    shards = [curves.artifact.shard(f"{index:03d}") for index in range(units)]
    used = [ledger.store.read(f"{curves.artifact.folder}/{shard}", PRUNING, ["n"])["n"][0].as_py() for shard in shards]
    record = {
        "shards": shards,
        "heads": None if curves.method == RANDOM else curves.heads.name,
        "samples": max(used, default=0),
        "model": {"identity": curves.model.resolved.identity, "id": curves.model.resolved.config.id},
        "inputs": {"tokenizer": inputs.tokenizer, "sha256": inputs.digest},
    }
    ledger.commit(curves.artifact, record, config=config.model_dump(mode="json"))
