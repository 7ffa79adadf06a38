"""The actor of a perturbation pool: it opens the model once and turns units of samples into committed curves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from evaluation.schema import CURVES, RELEVANCE, RELEVANCE_DOUBLE
from evaluation.scoring.flips import Flips
from jobs.cluster.attempts import Attempts, end_with_device, loading
from jobs.cluster.pools import own_device
from jobs.cluster.reports import reported
from jobs.plan.inputs import UNIT_COLUMNS, samples_of, task_of
from jobs.plan.models import ResolvedModel, open_view
from jobs.store import Store
from jobs.store.retry import retried

if TYPE_CHECKING:
    from jobs.stages.perturb.compute import Claim, DrawnCurves
    from lrp_core import ModelView


@dataclass(frozen=True)
class CellPart:
    """What a unit makes for one cell: from shards of relevance, the shard `path`."""

    method: str
    relevance: tuple[str, ...]
    variants: tuple[tuple[str, str], ...]  # explanation, embedding
    path: str


@dataclass(frozen=True)
class CurvesTask:
    """A unit of samples with the cells that are drawn together."""

    title: str
    dtype: str
    cells: tuple[CellPart, ...]
    flips: tuple[Flips, ...]
    token_budget: int
    tokens: int  # of the forwards, roughly


class Perturber:
    """Called by Ray Data with one unit at a time: a row with its task and its samples as lists."""

    def __init__(self, store: Store, model: ResolvedModel, seed: int, max_attempts: int, run: str) -> None:
        """`run` tells the notes of this run's workers from those of earlier ones."""
        self._store, self._model, self._seed = store, model, seed
        self._max_attempts, self._run_name = max_attempts, run
        self._view: ModelView | None = None
        self._dtype = ""

    def __call__(self, table: pa.Table) -> pa.Table:
        """Commit the unit; its report."""
        (row,) = table.to_pylist()
        task, rows = task_of(row), samples_of(row, UNIT_COLUMNS, self._store)
        return reported(task.title, len(rows), task.tokens, lambda: self._run(task, rows))

    def _run(self, task: CurvesTask, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """Draw and commit; what there is to report of it."""
        from jobs.stages.perturb.compute import CurveDrawing
        from lrp_core.readout import rows_for

        view, names = self._loaded(task.dtype), {row["sample_id"] for row in rows}
        said = {part.method: self._said(part, task.dtype, names) for part in task.cells}
        labelled = rows_for(view, [self._model.with_gold(row) for row in self._model.taken(rows)])
        attempts = Attempts(self._store, task.title, self._max_attempts, self._run_name)
        attempts.begin()
        with attempts.survived():
            try:
                drawn = CurveDrawing(view, task.dtype, task.flips, task.token_budget, said).run(labelled, attempts)
            except Exception as error:
                end_with_device(error, attempts)
                raise
        for part in task.cells:
            retried(partial(self._commit, part, drawn))
        attempts.clear()
        rejected = {reject.sample_id for rejects in drawn.rejects.values() for reject in rejects}
        return {"splits": drawn.splits, "rejects": len(rejected)}

    def _commit(self, part: CellPart, drawn: DrawnCurves) -> None:
        self._store.write_shard(part.path, drawn.table(part.method), CURVES, drawn.reject_table(part.method))

    def _said(self, part: CellPart, dtype: str, names: set[str]) -> dict[str, list[Claim]]:
        """What a part's variants say of the samples `names`, by sample id."""
        from jobs.stages.perturb.compute import RELEVANCE_COLUMNS, said_by

        schema = RELEVANCE_DOUBLE if dtype == "float64" else RELEVANCE
        said: dict[str, list[Claim]] = {}
        for path in part.relevance:
            table = self._store.read(path, schema, RELEVANCE_COLUMNS)
            own = pa.array([name in names for name in table["sample_id"].to_pylist()], pa.bool_())
            said |= said_by(part.method, table.filter(own), part.variants)
        return said

    def _loaded(self, dtype: str) -> ModelView:
        """The model in this precision; only one is held at a time."""
        if self._view is None or self._dtype != dtype:
            self._view = None
            with loading(self._store, self._model.config.name, self._max_attempts, self._run_name):
                self._view, self._dtype = open_view(self._model, dtype, own_device(), self._seed), dtype
        return self._view
