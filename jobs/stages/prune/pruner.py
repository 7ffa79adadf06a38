"""The actor of a pruning pool: it opens the model once and turns units of curves into committed shards."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from evaluation.schema import PRUNING
from evaluation.scoring.head_orders import RemovalOrder, area
from jobs.cluster.attempts import undivided
from jobs.cluster.reports import reported
from jobs.plan.inputs import UNIT_COLUMNS, samples_of, task_of
from jobs.stages.undivided import UndividedWorker, that_fits

if TYPE_CHECKING:
    from evaluation.scoring.pruning import Sweep


@dataclass(frozen=True)
class Shard:
    """Curves that are committed together, and the tokens of their forwards."""

    path: str
    curves: tuple[RemovalOrder, ...]
    tokens: int


@dataclass(frozen=True)
class PruningUnit:
    """Shards whose curves are drawn together."""

    title: str
    shards: tuple[Shard, ...]
    step: int
    token_budget: int

    @property
    def curves(self) -> tuple[RemovalOrder, ...]:
        return tuple(curve for shard in self.shards for curve in shard.curves)


class Pruner(UndividedWorker):
    """Called by Ray Data with one unit at a time: a row with the unit and the pruning subset as lists."""

    def __call__(self, table: pa.Table) -> pa.Table:
        """Commit the unit; its report."""
        (row,) = table.to_pylist()
        unit, rows = task_of(row), samples_of(row, UNIT_COLUMNS, self._store)
        tokens = sum(shard.tokens for shard in unit.shards)
        return reported(unit.title, len(unit.curves), tokens, lambda: {"splits": self._run(unit, rows)})

    def _run(self, unit: PruningUnit, rows: list[dict[str, Any]]) -> int:
        """Draw and commit; returns how often the token budget was halved. Raises RuntimeError for a deadly unit."""
        from evaluation.scoring.pruning import Sweep
        from lrp_core.readout import rows_for

        view = self._opened()
        with undivided(self._store, unit.title, self._max_attempts, self._run_name):
            sweep = Sweep(view, unit.curves, unit.step)
            labelled = rows_for(view, [self._model.with_gold(row) for row in self._model.taken(rows)])
            accuracy, splits = that_fits(partial(sweep.accuracy, labelled), unit.token_budget)
            table = curve_table(sweep, accuracy)
            start = 0
            for shard in unit.shards:
                points = len(shard.curves) * len(sweep.removed)
                self._store.write_shard(shard.path, table.slice(start, points), PRUNING)
                start += points
        return splits


def curve_table(sweep: Sweep, accuracy: np.ndarray) -> pa.Table:
    """One row a point, from `accuracy` [C, S]."""
    return pa.Table.from_pylist(list(_points(sweep, accuracy)), schema=PRUNING)


def _points(sweep: Sweep, accuracy: np.ndarray) -> Iterator[dict[str, Any]]:
    before = [0, *sweep.removed[:-1].tolist()]
    for curve, values in zip(sweep.curves, accuracy, strict=True):
        whole = float(area(values, sweep.removed))
        for step, (start, end) in enumerate(zip(before, sweep.removed.tolist(), strict=True)):
            yield {
                **{name: getattr(curve, name) for name in ("method", "pooling", "order", "seed")},
                "step": step,
                "pruned_heads": curve.heads[start:end],
                "accuracy": float(values[step]),
                "n": sweep.n,
                "area": whole,
            }
