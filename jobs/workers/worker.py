"""The actor of a model's pool: it opens the model once and turns units into committed shards."""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from evaluation.schema import RUNTIME
from jobs.config import ModelConfig, RunConfig
from jobs.inputs import INPUT_COLUMNS
from jobs.methods import configured
from jobs.models import ModelUnavailable, ResolvedModel, open_view
from jobs.store import Cell, Store
from jobs.workers.attempts import Attempts
from lrp_core.method import Method
from lrp_core.types import Request

if TYPE_CHECKING:
    from jobs.workers.compute import Explainer, Outcome, Row
    from lrp_core import ModelView


@dataclass(frozen=True)
class UnitTask:
    """A unit with the cells that still lack its shard; travels to the workers as JSON."""

    name: str
    product: str
    model: str
    task: str
    dtype: str
    cuts: tuple[int, ...]
    cells: tuple[tuple[Cell, tuple[Request, ...]], ...]

    @property
    def title(self) -> str:
        return f"{self.product}.{self.model}.{self.task}.{self.dtype}.{self.name}"

    def to_json(self) -> str:
        cells = [[asdict(cell), [asdict(request) for request in requests]] for cell, requests in self.cells]
        return json.dumps({**vars(self), "cells": cells})

    @classmethod
    def from_json(cls, text: str) -> UnitTask:
        raw = json.loads(text)
        cells = tuple((Cell(**cell), tuple(Request(**r) for r in requests)) for cell, requests in raw["cells"])
        return cls(**{**raw, "cuts": tuple(raw["cuts"]), "cells": cells})


@dataclass(frozen=True)
class WorkerOptions:
    """What a worker needs of the run configuration."""

    seed: int
    max_attempts: int
    checkpoint: bool
    byte_budget: int | None
    methods: Mapping[str, Method]  # of the run, by their names there

    @classmethod
    def of(cls, config: RunConfig, model: ModelConfig) -> WorkerOptions:
        # Without recomputation, autograd would keep the weights of every offloaded block alive.
        offloaded = model.max_memory is not None
        checkpoint = model.checkpoint or offloaded
        return cls(config.seed, config.max_attempts, checkpoint, config.byte_budget, configured(config))


#: What a worker reports of a unit. `error` is empty, or why nothing was committed; `fatal` errors concern every unit.
REPORT = pa.schema(
    [
        ("unit", pa.string()),
        ("rows", pa.int64()),
        ("tokens", pa.int64()),
        ("rejects", pa.int64()),
        ("splits", pa.int64()),
        ("wall_s", pa.float64()),
        ("error", pa.string()),
        ("fatal", pa.bool_()),
    ]
)


class Worker:
    """Called by Ray Data with one unit at a time: a row with the task's JSON and its samples as lists."""

    def __init__(self, store: Store, model: ResolvedModel, options: WorkerOptions) -> None:
        self._store, self._model, self._options = store, model, options
        self._view: ModelView | None = None
        self._dtype = ""
        self._metered: dict[tuple[str, str, tuple[Request, ...]], set[int]] = defaultdict(set)

    def __call__(self, table: pa.Table) -> pa.Table:
        """Commit the unit. Errors are reported, never raised: an exception would end the whole data set."""
        (unit,) = table.to_pylist()
        task = UnitTask.from_json(unit["task"])
        start = time.perf_counter()
        report = {"unit": task.title, "rows": len(unit["sample_id"]), "tokens": sum(map(len, unit["input_ids"]))}
        report |= {"rejects": 0, "splits": 0, "error": "", "fatal": False}
        try:
            outcome = self._run(task, samples(unit))
            report |= {"rejects": len(outcome.rejects), "splits": outcome.splits}
        except (ModelUnavailable, OSError) as error:
            report |= {"error": " ".join(str(error).split()), "fatal": True}
        except Exception as error:
            report |= {"error": f"{task.title}: {type(error).__name__}: {' '.join(str(error).split())}"}
        return pa.Table.from_pylist([{**report, "wall_s": time.perf_counter() - start}], schema=REPORT)

    def _run(self, task: UnitTask, rows: Sequence[Row]) -> Outcome:
        from jobs.workers.compute import Explainer

        view = self._open(task.dtype)
        requests = tuple(dict.fromkeys(request for _, wanted in task.cells for request in wanted))
        settings = {name: getattr(self._options, name) for name in ("checkpoint", "byte_budget", "seed")}
        attempts = Attempts(self._store, task.title, self._options.max_attempts)
        attempts.begin()
        metered = self._metered[task.product, task.dtype, requests]
        methods, heads = self._options.methods, task.product == "heads"
        explainer = Explainer(view, requests, heads, settings, methods, metered)
        outcome = explain_unit(explainer, rows, task.cuts, attempts)
        self._commit(task, outcome, str(view.device))
        attempts.clear()
        return outcome

    def _open(self, dtype: str) -> ModelView:
        """The model in this precision; only one is held at a time."""
        if self._view is None or self._dtype != dtype:
            import torch

            self._view = None
            device = "cuda" if torch.cuda.is_available() else "cpu"
            self._view, self._dtype = open_view(self._model, dtype, device, self._options.seed), dtype
        return self._view

    def _commit(self, task: UnitTask, outcome: Outcome, device: str) -> None:
        """Write the shard of every cell, its rejects in it. The runtime comes first, so that a shard vouches for it."""
        from jobs.workers import tables

        runtime = tables.runtime_table(task.name, outcome.explained, device)
        folder = self._store.runtime(task.model, task.task, task.dtype)
        self._store.write_shard(f"{folder}/{task.product}-{task.name}.parquet", runtime, RUNTIME)
        for cell, requests in task.cells:
            shard = f"{cell.key[:12]}-{task.name}.parquet"
            table, unusable = tables.cell_table(task.product, task.dtype, requests, outcome.explained)
            rejects = tables.reject_table(tables.merge_rejects(outcome, unusable))
            schema = tables.schema_of(task.product, task.dtype)
            self._store.write_shard(f"{self._store.cell(cell)}/{shard}", table, schema, rejects)


def samples(unit: dict[str, list[Any]]) -> list[dict[str, Any]]:
    columns = (unit[name] for name in INPUT_COLUMNS)
    return [dict(zip(INPUT_COLUMNS, values, strict=True)) for values in zip(*columns, strict=True)]


def explain_unit(explainer: Explainer, rows: Sequence[Row], cuts: Sequence[int], attempts: Attempts) -> Outcome:
    """All batches of a unit. A batch that has ended several workers is taken row by row."""
    from jobs.workers.compute import Outcome, explain

    outcome = Outcome()
    for index, batch in enumerate(_slices(rows, cuts)):
        if attempts.begin_batch(index):
            _explain_suspects(explainer, batch, attempts, outcome)
        else:
            explain(explainer, batch, outcome)
        attempts.end_batch(index)
    return outcome


def _explain_suspects(explainer: Explainer, batch: Sequence[Row], attempts: Attempts, outcome: Outcome) -> None:
    from jobs.workers.compute import Reject, explain_singly

    for row in batch:
        if attempts.begin_row(row["sample_id"]):
            outcome.rejects.append(Reject(row["sample_id"], "ended_worker", "the process ended while explaining it"))
            continue
        outcome.explained.extend(explain_singly(explainer, [row], outcome).values())
        attempts.end_row(row["sample_id"])


def _slices(rows: Sequence[Row], cuts: Sequence[int]) -> Iterator[Sequence[Row]]:
    for start, end in zip(cuts, [*cuts[1:], len(rows)], strict=True):
        yield rows[start:end]
