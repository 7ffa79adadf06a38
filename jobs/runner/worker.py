"""The worker of all products: it opens a model once, computes units, checks the results and writes their shards.

Results are checked before they are committed, since code of packages may return anything.
"""

from __future__ import annotations

import pickle
import threading
import time
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from closelook.evaluation.schema import REJECT
from closelook.jobs.cluster.attempts import LOADING, Attempts, Watchdog
from closelook.jobs.cluster.pools import own_device
from closelook.jobs.cluster.reports import Report, reported
from closelook.jobs.plan.checkpoints import ModelUnavailable
from closelook.jobs.plan.models import ResolvedModel, open_view
from closelook.jobs.plan.node import Part
from closelook.jobs.plan.units import FEW, REASONS_IN_DATA, Account, Task, WorkerOptions
from closelook.jobs.products.record import Made, NodeFailed, Opened, Product, Reject, Row
from closelook.jobs.products.table import PRODUCTS, is_of_package
from closelook.jobs.store import Artifact, Store
from closelook.jobs.store.lock import is_asked
from closelook.jobs.store.retry import retried
from closelook.lrp_core.records.types import UserError

if TYPE_CHECKING:
    from closelook.jobs.runner.rows import Outcome, Outcomes
    from closelook.lrp_core import ModelView

_SAMPLE = "sample_id"


class Unfit(Exception):
    """A result that cannot be stored; the message says why."""


def checked(product: Product, made: Any, samples: Collection[str]) -> Made:
    """The result of a part, checked: every row and reject belongs to one of the unit's `samples`, and none has both.

    Rows of other things than samples, and units without samples, are not checked. Raises Unfit, naming a sample, for
    any other result.
    """
    if not isinstance(made, Made) or not isinstance(made.table, pa.Table):
        raise Unfit(f"product {product.name} must return Made with a pyarrow.Table as `table`, not {_kind(made)}")
    if not samples or _SAMPLE not in made.table.column_names:
        return made
    explained = set(made.table[_SAMPLE].to_pylist())
    rejected = {reject.sample_id for reject in made.rejects}
    for kind, ids in (("rows", explained), ("rejects", rejected)):
        foreign = ids.difference(samples)
        if foreign:
            raise Unfit(f"there are {kind} of sample {min(map(str, foreign))}, which is not in this unit")
    if both := explained & rejected:
        raise Unfit(f"there are both rows and a reject of sample {min(both)}")
    return made


def _kind(made: Any) -> str:
    """The type of a wrong result, for the message."""
    return type(made.table).__name__ if isinstance(made, Made) else type(made).__name__


def _leaving_the_model(product: Product) -> Product:
    """The product of a package, whose `compute` raises ModelAltered if it changes the model."""
    from closelook.jobs.products.unaltered import left_unaltered

    def compute(opened: Opened, parts: Sequence[Part], rows: Sequence[Row]) -> Any:
        assert product.compute is not None
        with left_unaltered(opened.view.model, f"product {product.name}"):
            return product.compute(opened, parts, rows)

    return replace(product, compute=compute)


@dataclass(frozen=True)
class _Unit:
    """A unit that is committed: its product, the model it was computed on, and its samples."""

    product: Product
    opened: Opened
    samples: Sequence[str]  # ids


class Worker:
    """Computes and commits units. It is called with one unit at a time, as `Task.to_table` gives it.

    Two threads may call it at once: while one unit is computed the other is committed, so that the device does not wait
    for the store.
    """

    def __init__(self, store: Store, model: ResolvedModel | None, options: WorkerOptions) -> None:
        self._store, self._model, self._options = store, model, options
        self._device = threading.Lock()  # held while anything runs on the model
        self._view: ModelView | None = None
        self._dtype = ""
        self._memory: dict[Any, Any] = {}  # what computations keep while the model is open
        self._watchdog = Watchdog(options.batch_limit_s)
        self._failed: dict[Artifact, NodeFailed] = {}  # nodes that cannot be computed are not tried again

    def inherit(self, before: object) -> None:
        """Take over the open model of `before`, the worker that this process had; another model is closed."""
        if isinstance(before, Worker):
            if before._model == self._model and before._options.seed == self._options.seed:
                self._view, self._dtype, self._memory = before._view, before._dtype, before._memory
            before._view = None

    def __call__(self, table: pa.Table) -> pa.Table:
        """Compute and commit the unit in `table`; returns its report. After a request to stop it does nothing."""
        task: Task = pickle.loads(table["task"][0].as_py())
        if is_asked(self._store):
            return Report(task.title).to_table()
        rows = task.rows_in(self._store)
        tokens = task.tokens or sum(len(row["input_ids"]) for row in rows)
        report = Report(task.title, task.size, tokens)
        return reported(report, lambda: self._run(task, rows)).to_table()

    def _run(self, task: Task, rows: Sequence[Row]) -> dict[str, Any]:
        """Compute and commit the unit; returns the fields of its report.

        Raises UserError if no package on this machine has the product.
        """
        product = PRODUCTS.get(task.product)
        if product is None:
            raise UserError(f"no package on this machine has the product {task.product}: ship its wheel with the job")
        attempts = Attempts(self._store, task.title, self._options.max_attempts, self._options.run)
        opened = Opened(self._store, self._options, attempts, self._model, token_budget=task.token_budget)
        with self._device:
            start = time.perf_counter()
            names, outcomes = self._computed(product, opened, task, rows)
            wall_s = time.perf_counter() - start
        unit = _Unit(product, opened, names)
        failed, accounts, splits = retried(partial(self._commit, unit, outcomes))
        attempts.clear()
        explained = {task.methods[path]: account.explained for path, account in accounts.items()}
        by_part = [{reject["sample_id"] for reject in account.rejects} for account in accounts.values()]
        rejected = set.intersection(*by_part) if by_part else ()  # the samples that every part rejects
        counts = {"rejects": len(rejected), "explained": explained, "splits": splits, "wall_s": wall_s}
        return {"accounts": accounts, "failed": failed, **counts}

    def _computed(
        self, product: Product, opened: Opened, task: Task, rows: Sequence[Row]
    ) -> tuple[tuple[str, ...], Outcomes]:
        """(ids of the samples, the outcome of every part of the task).

        If code of a package changes the model, its parts fail, and the others are computed on a model that is opened
        again.
        """
        from closelook.jobs.products.unaltered import ModelAltered

        while True:
            is_loaded = self._model is None or (self._view is not None and self._dtype == task.dtype)
            opened.attempts.begin(None if is_loaded else LOADING)
            try:
                with opened.attempts.survived():
                    samples = rows
                    if self._model is not None:
                        opened.loaded = self._loaded(task.dtype, opened.attempts)
                        samples = self._prepared(opened.view, task, rows)
                    names = tuple(row["sample_id"] for row in samples)  # before any computation may change them
                    opened.memory, opened.watchdog = self._memory, self._watchdog
                    return names, self._compute(product, opened, task, samples)
            except ModelAltered as error:
                nodes = [part.node.artifact for part in task.parts if part.node.artifact not in self._failed]
                at_fault = [node for node in nodes if node.method in error.methods] or nodes
                self._failed |= dict.fromkeys(at_fault, NodeFailed(str(error)))
                self._view = opened.loaded = None

    def _loaded(self, dtype: str, attempts: Attempts) -> ModelView:
        """The model in this precision. Only one model is kept in memory at a time.

        Raises ModelUnavailable if loading it ended `max_attempts` processes that had this unit.
        """
        assert self._model is not None
        if self._view is None or self._dtype != dtype:
            deaths = attempts.deaths(LOADING)
            if deaths >= self._options.max_attempts:
                raise ModelUnavailable(
                    f"model {self._model.config.name}: loading it ended {deaths} processes, as when a node has too "
                    "little memory: lower its max_memory or workers, or give it larger nodes"
                )
            self._view = None
            self._memory = {}
            self._view, self._dtype = self._open(dtype), dtype
            attempts.rest()
        return self._view

    def _open(self, dtype: str) -> ModelView:
        """Load the model onto the device that Ray gave this worker."""
        assert self._model is not None
        return open_view(self._model, dtype, own_device(), self._options.seed)

    def _prepared(self, view: ModelView, task: Task, rows: Sequence[Row]) -> Sequence[Row]:
        """View rows as the model takes them, with the number of the gold label as `gold_id`.

        Rows that a task brings itself are no view rows, and stay as they are.
        """
        from closelook.lrp_core.readers.predictions import rows_for

        if task.rows is not None or not rows:
            return rows
        assert self._model is not None
        labelled = [self._model.with_gold(row) for row in self._model.taken(rows)]
        return rows_for(view, labelled)

    def _compute(self, product: Product, opened: Opened, task: Task, rows: Sequence[Row]) -> Outcomes:
        """The outcome of every part. Nodes that failed in an earlier unit are not computed again."""
        from closelook.jobs.runner.rows import compute_parts

        parts = [part for part in task.parts if part.node.artifact not in self._failed]
        if opened.loaded is not None and is_of_package(product.name):
            product = _leaving_the_model(product)
        outcomes = compute_parts(product, opened, parts, rows, task.cuts)
        for part, outcome in outcomes.items():
            if isinstance(outcome, NodeFailed):
                self._failed[part.node.artifact] = outcome
        return {part: self._failed.get(part.node.artifact) or outcomes[part] for part in task.parts}

    def _commit(self, unit: _Unit, outcomes: Outcomes) -> tuple[dict[Artifact, str], dict[str, Account], int]:
        """Write the shards of all parts that were computed.

        Returns the nodes without a shard, each with the reason; the accounts of the shards by path, so that the driver
        need not read them; and how often batches were split.
        """
        computed = {part: outcome for part, outcome in outcomes.items() if not isinstance(outcome, NodeFailed)}
        failed = {part.node.artifact: str(why) for part, why in outcomes.items() if isinstance(why, NodeFailed)}
        accounts: dict[str, Account] = {}
        splits = sum(outcome.splits for outcome in {id(item): item for item in computed.values()}.values())
        most_splits = 0
        for part, outcome in computed.items():
            account = self._commit_part(unit, part, outcome)
            if isinstance(account, str):
                failed[part.node.artifact] = account
            else:
                accounts[part.paths[0]], part_splits = account
                most_splits = max(most_splits, part_splits)
        return failed, accounts, splits + most_splits

    def _commit_part(self, unit: _Unit, part: Part, outcome: Outcome) -> tuple[Account, int] | str:
        """Write the shard of one part, with its rejects. Returns its account, and the number of splits.

        Splits are the times a batch was cut because memory ran out. Returns the reason as text if no shard is written:
        combining raised an error, the results do not fit the schema, or all rows failed and they are more than FEW. Up
        to FEW are rejects in a shard without rows.
        """
        from closelook.jobs.runner.rows import describe, first_and_others

        product, opened, samples = unit.product, unit.opened, unit.samples
        assert product.schema is not None
        schema = product.schema(part.node.artifact.dtype)
        try:
            made = product.combine(opened, part, outcome.of(part)) if outcome.values else Made(schema.empty_table())
            made = checked(product, made, samples)
        except Unfit as error:
            return str(error)
        except Exception as error:
            return describe(error)
        every = (*outcome.rejects, *made.rejects)
        rejects = list({reject.sample_id: reject for reject in every}.values())
        failures = [reject for reject in rejects if reject.reason not in REASONS_IN_DATA]
        if len(failures) == len(samples) > FEW:
            names = first_and_others([failure.sample_id for failure in failures])
            return f"every row of a unit failed, {names}: {_reasons(failures)}"
        path, *others = part.paths
        files = dict(made.written)
        for other, table in zip(others, made.beside, strict=False):  # others may be in `made.written`
            files[other] = self._store.write_shard(other, table, table.schema, None, part.origin)
        schema = made.schema or schema
        rejected = _reject_table(product, rejects)
        files[path] = self._store.write_shard(path, made.table, schema, rejected, part.origin)
        of_samples = "sample_id" in schema.names
        count = pc.count_distinct(made.table["sample_id"]).as_py() if of_samples else None
        return Account(count, rejected.to_pylist(), dict(made.facts), files), made.splits


def _reject_table(product: Product, rejects: Sequence[Reject]) -> pa.Table:
    """The rejects in schema REJECT."""
    rows = [
        {"sample_id": r.sample_id, "stage": product.stage, "reason": r.reason, "where": None, "detail": r.detail}
        for r in rejects
    ]
    return pa.Table.from_pylist(rows, schema=REJECT)


def _reasons(failed: Sequence[Reject]) -> str:
    """The detail that all rejects share; else the count of each reason, with the detail of its first reject."""
    if len({reject.detail for reject in failed}) == 1:
        return failed[0].detail
    counts = Counter(reject.reason for reject in failed)
    first = {reject.reason: reject.detail for reject in reversed(failed)}
    return "; ".join(f"{rows} x {reason}, the first: {first[reason]}" for reason, rows in counts.most_common())
