"""Evaluate: complete relevance cells become scores per sample and their means, on CPU workers.

A cell is scored as a whole or not at all: what is missing or partial has no scores, never a mean over some of its rows.
Scores are keyed by their relevance cell, the evidence they were held against and the metrics with their versions.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from evaluation.schema import RELEVANCE, SCORES, VIEW, SchemaMismatch, scores_samples_schema
from evaluation.scoring.metrics import METRICS, scored_by
from evaluation.scoring.samples import (
    RELEVANCE_COLUMNS,
    VARIANT,
    VIEW_COLUMNS,
    Masks,
    Mismatch,
    accuracy,
    negligible,
    noise,
    score_relevance,
    summarise,
)
from jobs.cluster.pools import connect
from jobs.config import RunConfig
from jobs.plan.cells import ModelPlan, Plan, PlannedCell, make_plan, state
from jobs.stages.summary import StageSummary
from jobs.store import Cell, Store, StoreError

TASK_VALUES = 2_000_000  # relevance values that are worth a Ray task of their own


@dataclass(frozen=True)
class Job:
    """One cell to score: its shards, the views it is held against, and the key under which its scores are kept."""

    cell: Cell
    shards: tuple[str, ...]
    views: str
    key: str
    scored_by: list[list[str | int]]  # see metrics.scored_by
    values: int  # relevance values, roughly

    @property
    def metrics(self) -> list[str]:
        return [str(name) for name, _ in self.scored_by if name]


@dataclass(frozen=True)
class Outcome:
    """What became of a job: how often each defect was met, or why it failed."""

    cell: Cell
    defects: tuple[tuple[str, int], ...] = ()
    failure: str | None = None


def evaluate(config: RunConfig, store: Store) -> StageSummary:
    """Score what is complete and not yet scored. Raises StoreError for a store of another schema version."""
    plan = make_plan(config, store)
    try:
        return score_plan(config, plan, store)
    except SchemaMismatch as error:
        raise StoreError(str(error)) from None


def score_plan(config: RunConfig, plan: Plan, store: Store) -> StageSummary:
    jobs, skipped, unfinished = pending(config, plan, store)
    outcomes = _run(config, store, jobs) if jobs else []
    failures = [f"{o.cell}: {o.failure}" for o in outcomes if o.failure]
    lines = [f"{len(jobs) - len(failures)} cells scored, {skipped} were up to date"]
    lines += [f"{o.cell}: {count} times {name}, counted as wrong" for o in outcomes for name, count in o.defects]
    lines += [f"{model}: {task} is not prepared: run `closelook prepare`" for model, task in plan.unprepared]
    if unfinished:
        lines.append(f"{unfinished} cells are not complete and have no scores: run `closelook attribute`")
    return StageSummary("evaluate", len(jobs) - len(failures), skipped, tuple(failures), tuple(lines))


def pending(config: RunConfig, plan: Plan, store: Store) -> tuple[list[Job], int, int]:
    """(cells to score, cells whose scores are up to date, cells that are not complete); scores of the latter go."""
    jobs: list[Job] = []
    skipped = unfinished = 0
    for model, planned, key in scores_keys(config, plan, store):
        cell, inputs = planned.cell, model.inputs[planned.cell.task]
        if key is None:
            forget(store, cell)
            unfinished += 1
        elif is_scored(store, cell, key):
            skipped += 1
        else:
            record = store.manifest(cell.name) or {}
            shards = tuple(f"{store.cell(cell)}/{shard}" for shard in record["shards"])
            values = int(inputs.lengths.sum()) * len(planned.requests)
            views = store.views(inputs.tokenizer, cell.task)
            jobs.append(Job(cell, shards, views, key, scored_by(config.task(cell.task)), values))
    return jobs, skipped, unfinished


def scores_keys(config: RunConfig, plan: Plan, store: Store) -> Iterator[tuple[ModelPlan, PlannedCell, str | None]]:
    """Every planned relevance cell with the key of its scores; None for a cell that is not complete."""
    evidence: dict[str, str] = {}
    for model in plan.models:
        for planned in model.cells:
            cell = planned.cell
            if cell.product != "relevance":
                continue
            if state(store, cell) != "done":
                yield model, planned, None
                continue
            views = store.views(model.inputs[cell.task].tokenizer, cell.task)
            if views not in evidence:
                evidence[views] = _digest(store, views)
            numbers = json.dumps([cell.key, evidence[views], scored_by(config.task(cell.task))])
            yield model, planned, hashlib.sha256(numbers.encode()).hexdigest()


def scores_name(cell: Cell) -> str:
    """Scores of a cell replace those of its predecessors, so the key is not part of their name."""
    return f"{cell.model}.{cell.task}.{cell.dtype}.{cell.method}"


def is_scored(store: Store, cell: Cell, key: str) -> bool:
    record = store.manifest(f"scores.{scores_name(cell)}")
    return record is not None and record["key"] == key


def forget(store: Store, cell: Cell) -> None:
    """Remove the scores of a cell, the manifest first."""
    name = scores_name(cell)
    store.delete(f"manifest/scores.{name}.json")
    store.delete(f"{store.scores}/{name}.parquet")
    store.delete(f"{store.scores_samples}/{name}.parquet")


def _digest(store: Store, views: str) -> str:
    """Of everything in the views that scores depend on."""
    table = store.read(views, VIEW, VIEW_COLUMNS).replace_schema_metadata(None).combine_chunks()
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return hashlib.sha256(sink.getvalue()).hexdigest()


def _run(config: RunConfig, store: Store, jobs: list[Job]) -> list[Outcome]:
    """All jobs in few Ray tasks, each large enough to be worth starting; what one task would hold needs no Ray."""
    parts = _parts(jobs)
    if len(parts) == 1:
        return score_cells(store, parts[0])
    connect(config)
    import ray

    task = ray.remote(num_cpus=1)(score_cells)
    outcomes = ray.get([task.remote(store, part) for part in parts])
    return [outcome for part in outcomes for outcome in part]


def _parts(jobs: list[Job]) -> list[list[Job]]:
    """Jobs in runs of at least TASK_VALUES that share their views where they can."""
    parts: list[list[Job]] = []
    size = TASK_VALUES
    for job in sorted(jobs, key=lambda job: (job.views, -job.values)):
        if size >= TASK_VALUES:
            parts.append([])
            size = 0
        parts[-1].append(job)
        size += job.values
    return parts


def score_cells(store: Store, jobs: Iterable[Job]) -> list[Outcome]:
    """Score `jobs` one after the other and commit each; one that cannot be scored does not stop the others."""
    outcomes, masks, path = [], None, None
    for job in jobs:
        try:
            if masks is None or path != job.views:
                masks, path = Masks.of(store.read(job.views, VIEW, VIEW_COLUMNS)), job.views
            outcomes.append(_score_cell(store, job, masks))
        except Mismatch as error:
            outcomes.append(Outcome(job.cell, failure=str(error)))
    return outcomes


def _score_cell(store: Store, job: Job, masks: Masks) -> Outcome:
    lacking = [name for name in job.metrics if name not in METRICS]
    if lacking:
        return Outcome(job.cell, failure=f"the metric {lacking[0]} is not installed on a node of the cluster")
    own = {name: METRICS[name] for name in job.metrics}
    tables, logits, defects = [], [], Counter[str]()
    nothing = (RELEVANCE.empty_table().select(RELEVANCE_COLUMNS),)  # of a cell without samples
    shards = (store.read(shard, RELEVANCE, RELEVANCE_COLUMNS) for shard in job.shards)
    for relevance in shards if job.shards else nothing:  # the relevance of one shard at a time is in memory
        table, found = score_relevance(relevance, masks, own)
        tables.append(table)
        logits.append(relevance.drop_columns("relevance").append_column("noise", pa.array(negligible(relevance))))
        defects.update(found)
    samples = pa.concat_tables(tables).sort_by([(name, "ascending") for name in [*VARIANT, "sample_id"]])
    told = pa.concat_tables(logits)
    means = pa.concat_tables([summarise(samples, own), accuracy(told), noise(told)])
    name = scores_name(job.cell)
    for other in METRICS.keys() - own.keys():
        samples = samples.append_column(other, pa.nulls(len(samples), pa.float32()))
    schema = scores_samples_schema(METRICS)
    store.write_shard(f"{store.scores_samples}/{name}.parquet", _with_cell(samples, job.cell), schema)
    store.write_shard(f"{store.scores}/{name}.parquet", _with_cell(means, job.cell), SCORES)
    record = {"key": job.key, "relevance": job.cell.name, "metrics": job.scored_by, "defects": dict(defects)}
    store.write_manifest(f"scores.{name}", record)
    return Outcome(job.cell, tuple(defects.items()))


def _with_cell(table: pa.Table, cell: Cell) -> pa.Table:
    for name in ("model", "task", "dtype", "method"):
        column = pa.DictionaryArray.from_arrays(np.zeros(len(table), np.int8), pa.array([getattr(cell, name)]))
        table = table.append_column(name, column)
    return table
