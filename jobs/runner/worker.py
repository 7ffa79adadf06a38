"""The worker of all products: it opens a model once, computes units, checks the results and writes their shards.

Results are checked before they are committed, since code of packages may return anything.
"""

from __future__ import annotations

import pickle
import threading
import time
from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from closelook.evaluation.schema import REJECT
from closelook.jobs.cluster.attempts import COMPUTING, LOADING, Attempts, Watchdog
from closelook.jobs.cluster.pools import own_device
from closelook.jobs.cluster.reports import Report, reported
from closelook.jobs.plan.checkpoints import ModelUnavailable
from closelook.jobs.plan.inputs import Selected
from closelook.jobs.plan.models import ResolvedModel, open_view
from closelook.jobs.plan.node import Part
from closelook.jobs.plan.units import FEW, REASONS_IN_DATA, Account, Unit, WorkerOptions
from closelook.jobs.products.record import Made, NodeFailed, Opened, Product, Row
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
    table = made.table if isinstance(made, Made) else made
    if not isinstance(made, Made) or not isinstance(table, pa.Table):
        kind = type(table).__name__
        raise Unfit(f"product {product.name} must return Made with a pyarrow.Table as `table`, not {kind}")
    if not samples or _SAMPLE not in table.column_names:
        return made
    explained = set(table[_SAMPLE].to_pylist())
    rejected = {reject.sample_id for reject in made.rejects}
    for kind, ids in (("rows", explained), ("rejects", rejected)):
        foreign = ids.difference(samples)
        if foreign:
            raise Unfit(f"there are {kind} of sample {min(map(str, foreign))}, which is not in this unit")
    if both := explained & rejected:
        raise Unfit(f"there are both rows and a reject of sample {min(both)}")
    return made


class Worker:
    """Computes and commits units. It is called with one unit at a time, as `Unit.to_table` gives it.

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
        unit: Unit = pickle.loads(table["unit"][0].as_py())
        title = unit.title
        if is_asked(self._store):
            return Report(title).to_table()
        rows = unit.rows.rows(self._store) if isinstance(unit.rows, Selected) else list(unit.rows)
        tokens = unit.tokens or sum(len(row["input_ids"]) for row in rows)
        report = Report(title, unit.progress, tokens)
        return reported(report, lambda: self._run(unit, rows)).to_table()

    def _run(self, unit: Unit, rows: Sequence[Row]) -> dict[str, Any]:
        """Compute and commit the unit; returns the fields of its report."""
        parts = unit.sent_parts
        name = parts[0].node.artifact.product
        product = PRODUCTS.get(name)
        if product is None:
            raise UserError(f"no package on this machine has the product {name}: ship its wheel with the job")
        attempts = Attempts(self._store, unit.title, self._options.max_attempts, self._options.run)
        opened = Opened(self._store, self._options, attempts, self._model, token_budget=unit.token_budget)
        with self._device, attempts.running():
            start = time.perf_counter()
            samples, outcomes = self._computed(product, opened, unit, rows)
            wall_s = time.perf_counter() - start
        failed, accounts, splits = retried(partial(self._commit, product, opened, samples, outcomes))
        explained = {}
        for part in parts:
            if part.paths[0] in accounts:
                explained[part.node.artifact.method or unit.title] = accounts[part.paths[0]].explained
        by_part = [{reject[_SAMPLE] for reject in account.rejects} for account in accounts.values()]
        rejected = set.intersection(*by_part) if by_part else ()  # the samples that every part rejects
        counts = {"rejects": len(rejected), "explained": explained, "splits": splits, "wall_s": wall_s}
        return {"accounts": accounts, "failed": failed, **counts}

    def _computed(
        self, product: Product, opened: Opened, unit: Unit, rows: Sequence[Row]
    ) -> tuple[tuple[str, ...], Outcomes]:
        """(ids of the samples, the outcome of every part of the unit)."""
        from closelook.jobs.products.unaltered import ModelAltered

        parts = unit.sent_parts
        dtype = parts[0].node.artifact.dtype
        while True:
            try:
                samples = rows
                if self._model is not None:
                    opened.loaded = self._loaded(dtype, opened.attempts)
                    samples = self._prepared(opened.view, unit, rows)
                names = tuple(row[_SAMPLE] for row in samples)  # before any computation may change them
                opened.memory, opened.watchdog = self._memory, self._watchdog
                return names, self._compute(product, opened, unit, samples)
            except ModelAltered as error:
                nodes = [part.node.artifact for part in parts if part.node.artifact not in self._failed]
                at_fault = [node for node in nodes if node.method in error.methods] or nodes
                self._failed |= dict.fromkeys(at_fault, NodeFailed(str(error)))
                self._view = opened.loaded = None

    def _loaded(self, dtype: str, attempts: Attempts) -> ModelView:
        """The model in this precision."""
        assert self._model is not None
        if self._view is None or self._dtype != dtype:
            deaths = attempts.deaths(LOADING)
            if deaths >= self._options.max_attempts:
                raise ModelUnavailable(
                    f"model {self._model.config.name}: loading it ended {deaths} processes, as when a node has too "
                    "little memory: lower its max_memory or workers, or give it larger nodes"
                )
            attempts.run(LOADING)
            self._view = None
            self._memory = {}
            self._view, self._dtype = self._open(dtype), dtype
            attempts.run(COMPUTING)
        return self._view

    def _open(self, dtype: str) -> ModelView:
        """Load the model onto the device that Ray gave this worker."""
        assert self._model is not None
        return open_view(self._model, dtype, own_device(), self._options.seed)

    def _prepared(self, view: ModelView, unit: Unit, rows: Sequence[Row]) -> Sequence[Row]:
        """View rows as the model takes them, with the number of the gold label as `gold_id`; other rows unchanged."""
        from closelook.lrp_core.readers.predictions import rows_for

        if not isinstance(unit.rows, Selected) or not rows:
            return rows
        assert self._model is not None
        labelled = [self._model.with_gold(row) for row in self._model.taken(rows)]
        return rows_for(view, labelled)

    def _compute(self, product: Product, opened: Opened, unit: Unit, rows: Sequence[Row]) -> Outcomes:
        """The outcome of every part. Nodes that failed in an earlier unit are not computed again."""
        from closelook.jobs.runner.rows import compute_parts

        every = unit.sent_parts
        parts = [part for part in every if part.node.artifact not in self._failed]
        if opened.loaded is not None and is_of_package(product.name):
            product = _leaving_the_model(product)
        outcomes = compute_parts(product, opened, parts, rows, unit.cuts)
        for part, outcome in outcomes.items():
            if isinstance(outcome, NodeFailed):
                self._failed[part.node.artifact] = outcome
        return {part: self._failed.get(part.node.artifact) or outcomes[part] for part in every}

    def _commit(
        self, product: Product, opened: Opened, samples: Sequence[str], outcomes: Outcomes
    ) -> tuple[dict[Artifact, str], dict[str, Account], int]:
        """Write the shards of all parts that were computed.

        Returns the nodes without a shard, each with the reason; the accounts of the shards by path, so that the driver
        need not read them; and how often batches were split.
        """
        failed: dict[Artifact, str] = {}
        accounts: dict[str, Account] = {}
        batch_splits: dict[int, int] = {}  # of each outcome, which parts share
        part_splits = 0
        for part, outcome in outcomes.items():
            if isinstance(outcome, NodeFailed):
                failed[part.node.artifact] = str(outcome)
                continue
            batch_splits[id(outcome)] = outcome.splits
            account = self._commit_part(product, opened, samples, part, outcome)
            if isinstance(account, str):
                failed[part.node.artifact] = account
            else:
                accounts[part.paths[0]], splits = account
                part_splits = max(part_splits, splits)
        return failed, accounts, sum(batch_splits.values()) + part_splits

    def _commit_part(
        self, product: Product, opened: Opened, samples: Sequence[str], part: Part, outcome: Outcome
    ) -> tuple[Account, int] | str:
        """Write the shard of one part, with its rejects. Returns its account, and how often combining it was split.

        Returns the reason as text if no shard is written: combining raised an error, the results do not fit the schema,
        or all rows failed and they are more than FEW. Up to FEW are rejects in a shard without rows.
        """
        from closelook.jobs.runner.rows import STORE_ERRORS, describe, first_and_others

        assert product.schema is not None
        schema = product.schema(part.node.artifact.dtype)
        try:
            made = product.combine(opened, part, outcome.of(part)) if outcome.values else Made(schema.empty_table())
            made = checked(product, made, samples)
        except Unfit as error:
            return str(error)
        except STORE_ERRORS:
            raise
        except Exception as error:
            return describe(error)
        rejects = {reject.sample_id: reject for reject in (*outcome.rejects, *made.rejects)}
        failures = [reject for reject in rejects.values() if reject.reason not in REASONS_IN_DATA]
        if len(failures) == len(samples) > FEW:
            names = first_and_others([failure.sample_id for failure in failures])
            return f"every row of a unit failed, {names}: {failures[0].detail}"
        path, *others = part.paths
        files = dict(made.written)
        for other, table in zip(others, made.beside, strict=False):  # others may be in `made.written`
            files[other] = self._store.write_shard(other, table, table.schema, None, part.origin)
        schema = made.schema or schema
        reject_rows = [vars(reject) | {"stage": product.stage, "where": None} for reject in rejects.values()]
        rejected = pa.Table.from_pylist(reject_rows, schema=REJECT)
        files[path] = self._store.write_shard(path, made.table, schema, rejected, part.origin)
        count = pc.count_distinct(made.table[_SAMPLE]).as_py() if _SAMPLE in schema.names else None
        return Account(count, rejected.to_pylist(), dict(made.facts), files), made.splits


def _leaving_the_model(product: Product) -> Product:
    """The product of a package, whose `compute` raises ModelAltered if it changes the model."""
    from closelook.jobs.products.unaltered import left_unaltered

    def compute(opened: Opened, parts: Sequence[Part], rows: Sequence[Row]) -> Any:
        assert product.compute is not None
        with left_unaltered(opened.view.model, f"product {product.name}"):
            return product.compute(opened, parts, rows)

    return replace(product, compute=compute)
