"""The actor of a selection pool: a worker of `attribute` that tries a method's options instead of committing relevance.

It explains a unit of samples under every trial's options, draws the curves of all trials together, as `perturb` does,
and commits the areas to the shard of each method's trials.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from evaluation.schema import REJECT, TRIALS
from evaluation.scoring.flips import Flips
from jobs.cluster.attempts import Attempts, end_with_device
from jobs.cluster.reports import reported
from jobs.plan.inputs import UNIT_COLUMNS, samples_of, task_of
from jobs.plan.models import ResolvedModel
from jobs.plan.units import NO_RELEVANCE
from jobs.stages.attribute.worker import UnitTask, Worker, WorkerOptions
from jobs.store import Artifact, Store
from jobs.store.retry import retried

if TYPE_CHECKING:
    from jobs.stages.attribute.compute import Outcome, Reject
    from jobs.stages.perturb.compute import DrawnCurves

LENGTHS = range(64)  # powers of two; no text is longer


@dataclass(frozen=True)
class MethodTrials:
    """What a unit makes for one method's trials: the shard `path`."""

    artifact: Artifact
    trials: tuple[str, ...]  # methods of the unit's requests
    path: str


@dataclass(frozen=True)
class TrialsTask:
    """A unit of samples, its trials as the cells of a task of `attribute`."""

    explain: UnitTask
    methods: tuple[MethodTrials, ...]
    flips: Flips
    token_budget: int  # of the curves' forwards
    tokens: int  # of all forwards, roughly


class Selector(Worker):
    """Called by Ray Data with one unit at a time: a row with its task and its samples as lists."""

    def __init__(self, store: Store, model: ResolvedModel, options: WorkerOptions) -> None:
        super().__init__(store, model, options)
        self._metered = defaultdict(partial(set, LENGTHS))  # runtimes of trials are not kept, so none is measured

    def __call__(self, table: pa.Table) -> pa.Table:
        """Commit the unit; its report."""
        (row,) = table.to_pylist()
        task, rows = task_of(row), samples_of(row, UNIT_COLUMNS, self._store)
        return reported(task.explain.title, len(rows), task.tokens, lambda: self._try(task, rows))

    def _try(self, task: TrialsTask, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """Explain, draw and commit; what there is to report of it."""
        from jobs.stages.perturb.compute import CurveDrawing, said_by
        from lrp_core.readout import rows_for

        unit = task.explain
        view = self._loaded(unit.dtype)
        attempts = Attempts(self._store, unit.title, self._options.max_attempts, self._options.run)
        attempts.begin()
        with attempts.survived():
            own = rows_for(view, [self._model.with_gold(row) for row in self._model.taken(rows)])
            explained = _Explained.of(unit, self._explain(unit, view, own, attempts))
            said = {name: said_by(name, table, variants) for name, (table, variants) in explained.tables.items()}
            try:
                drawn = CurveDrawing(view, unit.dtype, (task.flips,), task.token_budget, said).run(own, attempts)
            except Exception as error:
                end_with_device(error, attempts)
                raise
        failed = {}
        for one in task.methods:
            lost = [name for name in one.trials if name not in explained.tables]
            if lost:
                failed[replace(one.artifact, method=lost[0])] = explained.why(unit, lost[0], self._ended)
            else:
                retried(partial(self._commit_trials, one, rows, drawn, explained.rejects))
        attempts.clear()
        return {
            "splits": drawn.splits + explained.splits,
            "rejects": len({reject.sample_id for rejects in drawn.rejects.values() for reject in rejects}),
            "result": json.dumps([[asdict(cell), why] for cell, why in failed.items()]) if failed else None,
        }

    def _commit_trials(
        self,
        method: MethodTrials,
        rows: Sequence[Mapping[str, Any]],
        drawn: DrawnCurves,
        rejects: Mapping[str, Sequence[Reject]],
    ) -> None:
        """A row for each sample that has finite curves in some trial, a reject for each other."""
        areas = {
            (name, row["sample_id"], row["order"]): row["area"] for name in method.trials for row in drawn.rows[name]
        }
        kept, lost = [], []
        for row in rows:
            own = row["sample_id"]
            of_orders = [
                [areas.get((name, own, order), np.nan) for name in method.trials] for order in ("morf", "lerf")
            ]
            if np.isfinite(np.sum(of_orders, axis=0)).any():
                kept.append({"sample_id": own, "area_morf": of_orders[0], "area_lerf": of_orders[1]})
            else:
                lost.append(_why(own, [(name, [*rejects[name], *drawn.rejects[name]]) for name in method.trials]))
        table = pa.Table.from_pylist(kept, schema=TRIALS)
        self._store.write_shard(method.path, table, TRIALS, pa.Table.from_pylist(lost, schema=REJECT))


@dataclass(frozen=True)
class _Explained:
    """What became of the trials of a unit: relevance as it is stored, by trial, with its variants."""

    tables: dict[str, tuple[pa.Table, list[tuple[str, str]]]]
    rejects: dict[str, list[Reject]]
    unusable: dict[str, str]  # trials whose relevance cannot be stored, and why
    splits: int

    @classmethod
    def of(cls, unit: UnitTask, outcomes: Mapping[str, Outcome]) -> _Explained:
        from jobs.stages.attribute import tables
        from jobs.stages.attribute.compute import describe

        explained, rejects, unusable = {}, {}, {}
        for cell, requests in unit.cells:
            outcome = outcomes.get(cell.method)
            if outcome is None:
                continue
            try:
                table, more = tables.cell_table("relevance", unit.dtype, requests, outcome.explained)
            except Exception as error:
                unusable[cell.method] = describe(error)
                continue
            explained[cell.method] = table, [(request.explanation, request.embedding) for request in requests]
            rejects[cell.method] = tables.merge_rejects(outcome, more)
        splits = sum(outcome.splits for outcome in {id(outcome): outcome for outcome in outcomes.values()}.values())
        return cls(explained, rejects, unusable, splits)

    def why(self, unit: UnitTask, trial: str, ended: Mapping[Artifact, str]) -> str:
        """Why there is no relevance of a trial."""
        (cell,) = (cell for cell, _ in unit.cells if cell.method == trial)
        return self.unusable.get(trial) or ended[cell]


def _why(sample: str, rejects: Sequence[tuple[str, Sequence[Reject]]]) -> dict[str, Any]:
    """A row of REJECT: the first trial's reason that says more than that there was no relevance to draw."""
    own = [(name, one) for name, of_cell in rejects for one in of_cell if one.sample_id == sample]
    telling = [(name, one) for name, one in own if one.reason != NO_RELEVANCE] or own
    name, reason, detail = rejects[0][0], "not_finite", "no trial has finite curves"
    if telling:
        name, reason, detail = telling[0][0], telling[0][1].reason, telling[0][1].detail
    return {"sample_id": sample, "stage": "select", "reason": reason, "where": None, "detail": f"{name}: {detail}"}
