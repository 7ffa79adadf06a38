"""Evaluate: complete relevance cells become scores per sample and their means, on CPU workers.

A cell is scored as a whole or not at all: what is missing or partial has no scores, never a mean over some of its rows.
Scores are keyed by their relevance cell, the evidence they were held against and the metrics with their versions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from evaluation.schema import RELEVANCE, VIEW, SchemaMismatch, scores_samples_schema
from evaluation.schema import SCORES as MEANS
from evaluation.scoring.means import Means
from evaluation.scoring.metrics import METRICS, scored_by
from evaluation.scoring.samples import RELEVANCE_COLUMNS, VARIANT, VIEW_COLUMNS, Masks, Mismatch
from jobs.cluster.pools import connect
from jobs.config import RunConfig
from jobs.plan.cells import Plan, make_plan
from jobs.plan.products.record import Wanted
from jobs.plan.products.scores import SCORES
from jobs.stages.layer_scores import score_by_layer
from jobs.stages.summary import StageSummary
from jobs.store import Artifact, Ledger, Store, StoreError

TASK_VALUES = 2_000_000  # relevance values that are worth a Ray task of their own
ROWS_AT_ONCE = 1 << 18  # scores that are sorted and written together


@dataclass(frozen=True)
class CellToScore:
    """One cell to score: its shards, those of the views it is held against, and the scores that it will have."""

    cell: Artifact
    shards: tuple[str, ...]
    views: tuple[str, ...]
    scores: Artifact
    scored_by: list[list[str | int]]  # see metrics.scored_by
    values: int  # relevance values, roughly
    label_ids: dict[str, int] = field(default_factory=dict)  # the model's number of each gold label

    @property
    def metrics(self) -> list[str]:
        return [str(name) for name, _ in self.scored_by if name]


@dataclass(frozen=True)
class Scored:
    """What became of a job: how often each defect was met, or why it failed."""

    cell: Artifact
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
    ledger = Ledger(store)
    jobs, skipped, unfinished = pending(config, plan, ledger)
    # Scores of a cell that lost shards are right once these are made again.
    wrong = [one.artifact for one in unfinished if not any(map(ledger.described_damage, one.of))]
    for scores in (*wrong, *(job.scores for job in jobs)):
        ledger.forget(scores)  # before its file, whose name tells no key, has other numbers
    of_cell, settings = {job.cell: job for job in jobs}, config.model_dump(mode="json")
    outcomes: list[Scored] = []
    for outcome in _run(config, store, jobs):
        outcomes.append(outcome)
        if outcome.failure is None:
            job = of_cell[outcome.cell]
            record = {"relevance": job.cell.name, "metrics": job.scored_by, "defects": dict(outcome.defects)}
            ledger.commit(job.scores, record, config=settings)
    failures = [f"{o.cell}: {o.failure}" for o in outcomes if o.failure]
    computed = len(jobs) - len(failures)
    lines = [f"{computed} cells scored, {skipped} were up to date"]
    lines += [f"{o.cell}: {count} times {name}, counted as wrong" for o in outcomes for name, count in o.defects]
    lines += [f"{model}: {task} is not prepared: run `closelook prepare`" for model, task in plan.unprepared]
    by_layer = score_by_layer(config, plan, ledger)
    if by_layer.computed or by_layer.skipped:
        lines.append(f"{by_layer.computed} cells scored by layer, {by_layer.skipped} were up to date")
    if lacking := len(unfinished) + by_layer.unfinished:
        lines.append(f"{lacking} cells are not complete and have no scores: run `closelook attribute`")
    failures += by_layer.failures
    return StageSummary(
        "evaluate", computed + by_layer.computed, skipped + by_layer.skipped, tuple(failures), tuple(lines)
    )


def pending(config: RunConfig, plan: Plan, ledger: Ledger) -> tuple[list[CellToScore], int, list[Wanted]]:
    """(cells to score, how many are scored already, what is wanted of cells that are not complete)."""
    inputs = {(model.name, task): own for model in plan.models for task, own in model.inputs.items()}
    resolved = {model.name: model.resolved for model in plan.models}
    requests = {planned.cell: len(planned.requests) for planned in plan.cells()}
    jobs: list[CellToScore] = []
    skipped, unfinished = 0, list[Wanted]()
    for one in SCORES.wanted(config, plan, ledger):
        (cell,) = one.of
        if not ledger.is_done(cell):
            unfinished.append(one)
        elif ledger.is_done(one.artifact):
            skipped += 1
        else:
            views = inputs[cell.model, cell.task]
            values = int(views.lengths.sum()) * requests[cell]
            metrics = scored_by(config.task(cell.task))
            files, ids = tuple(ledger.files(cell)), resolved[cell.model].label_ids(views.labels)
            jobs.append(CellToScore(cell, files, views.paths, one.artifact, metrics, values, ids))
    return jobs, skipped, unfinished


def _run(config: RunConfig, store: Store, jobs: list[CellToScore]) -> Iterator[Scored]:
    """What became of each job, in few Ray tasks that are worth starting; what one task would hold needs no Ray."""
    parts = _parts(jobs)
    if len(parts) < 2:
        yield from (outcome for part in parts for outcome in score_cells(store, part))
        return
    connect(config)
    import ray

    task = ray.remote(num_cpus=1)(_score_part)
    for outcomes in [task.remote(store, part) for part in parts]:
        yield from ray.get(outcomes)


def _score_part(store: Store, jobs: Iterable[CellToScore]) -> list[Scored]:
    """Scores some cells, in a Ray worker."""
    return list(score_cells(store, jobs))


def _parts(jobs: list[CellToScore]) -> list[list[CellToScore]]:
    """Jobs in runs of at least TASK_VALUES that share their views where they can."""
    parts: list[list[CellToScore]] = []
    size = TASK_VALUES
    for job in sorted(jobs, key=lambda job: (job.views, -job.values)):
        if size >= TASK_VALUES:
            parts.append([])
            size = 0
        parts[-1].append(job)
        size += job.values
    return parts


def score_cells(store: Store, jobs: Iterable[CellToScore]) -> Iterator[Scored]:
    """Score `jobs` one after the other and write the scores of each; one that fails does not stop the others.

    Whoever enters them in the ledger has made it forget those that were there.
    """
    masks, known = None, None
    for job in jobs:
        try:
            if masks is None or known != (job.views, job.label_ids):
                masks = Masks.of(store.read(job.views, VIEW, VIEW_COLUMNS), job.label_ids)
                known = job.views, job.label_ids
            yield _score_cell(store, job, masks)
        except (Mismatch, StoreError) as error:
            yield Scored(job.cell, failure=str(error))


def _score_cell(store: Store, job: CellToScore, masks: Masks) -> Scored:
    lacking = [name for name in job.metrics if name not in METRICS]
    if lacking:
        return Scored(job.cell, failure=f"the metric {lacking[0]} is not installed on a node of the cluster")
    own = {name: METRICS[name] for name in job.metrics}
    means = Means(masks, own)
    of_means, of_samples = (f"{folder}/{job.scores.shard()}" for folder in job.scores.folders)
    store.write_parts(of_samples, _samples(store, job, means), scores_samples_schema(METRICS))
    store.write_shard(of_means, _with_cell(means.table(), job.cell), MEANS)
    return Scored(job.cell, tuple(means.defects.items()))


def _samples(store: Store, job: CellToScore, means: Means) -> Iterator[pa.Table]:
    """The scores of every sample, of which a part at a time is in memory; `means` counts them."""
    nothing = (RELEVANCE.empty_table().select(RELEVANCE_COLUMNS),)  # of a cell without samples
    shards = store.read_each(job.shards, RELEVANCE, RELEVANCE_COLUMNS) if job.shards else nothing
    parts, rows = [], 0
    for relevance in shards:
        parts.append(means.add(relevance))
        rows += len(parts[-1])
        if rows >= ROWS_AT_ONCE:
            yield _finished(parts, job)
            parts, rows = [], 0
    if parts:
        yield _finished(parts, job)


def _finished(parts: list[pa.Table], job: CellToScore) -> pa.Table:
    samples = pa.concat_tables(parts).sort_by([(name, "ascending") for name in [*VARIANT, "sample_id"]])
    for other in METRICS.keys() - set(job.metrics):
        samples = samples.append_column(other, pa.nulls(len(samples), pa.float32()))
    return _with_cell(samples, job.cell)


def _with_cell(table: pa.Table, cell: Artifact) -> pa.Table:
    for name in ("model", "task", "dtype", "method"):
        column = pa.DictionaryArray.from_arrays(np.zeros(len(table), np.int8), pa.array([getattr(cell, name)]))
        table = table.append_column(name, column)
    return table
