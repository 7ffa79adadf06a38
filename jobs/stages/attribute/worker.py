"""The actor of a model's pool: it opens the model once and turns units into committed shards."""

from __future__ import annotations

import json
import threading
import uuid
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from evaluation.schema import RUNTIME
from jobs.cluster.attempts import Attempts, end_with_device, loading
from jobs.cluster.pools import own_device
from jobs.cluster.reports import reported
from jobs.config import ModelConfig, RunConfig
from jobs.methods import configured
from jobs.plan.inputs import samples_of, task_of
from jobs.plan.models import ResolvedModel, open_view
from jobs.plan.schemas import schema_of
from jobs.plan.units import FEW, NO_FOIL
from jobs.store import Artifact, Store
from jobs.store.retry import retried
from jobs.store.spent import COMMIT, WAIT, spending
from lrp_core.method import Method
from lrp_core.types import Request

if TYPE_CHECKING:
    from jobs.stages.attribute.compute import Explainer, Outcome, Reject, Row
    from lrp_core import ModelView


#: Of a shard: samples it explains, and its rejects as rows of REJECT.
Account = tuple[int, list[dict[str, Any]]]


@dataclass(frozen=True)
class UnitTask:
    """A unit with the cells that still lack its shard."""

    name: str
    product: str
    model: str
    task: str
    dtype: str
    cuts: tuple[int, ...]
    cells: tuple[tuple[Artifact, tuple[Request, ...]], ...]
    #: Methods that a choice or a trial gives other options: (name in the requests, name in the run, options).
    tuned: tuple[tuple[str, str, dict[str, Any]], ...] = ()

    @property
    def title(self) -> str:
        return f"{self.product}.{self.model}.{self.task}.{self.dtype}.{self.name}"


@dataclass(frozen=True)
class WorkerOptions:
    """What a worker needs of the run configuration."""

    seed: int
    max_attempts: int
    checkpoint: bool
    byte_budget: int | None
    methods: Mapping[str, Method]  # of the run, by their names there
    run: str  # tells the notes of this run's workers from those of earlier ones

    @classmethod
    def of(cls, config: RunConfig, model: ModelConfig) -> WorkerOptions:
        # Without recomputation, autograd would keep the weights of every offloaded block alive.
        offloaded = model.max_memory is not None
        checkpoint = model.checkpoint or offloaded
        run = uuid.uuid4().hex
        return cls(config.seed, config.max_attempts, checkpoint, config.byte_budget, configured(config), run)


class Worker:
    """Called by Ray Data with a unit: a row with its task and its samples as lists.

    Two threads may call it at once: one unit is explained at a time, and the other is committed meanwhile, so that the
    device does not wait for the store.
    """

    def __init__(self, store: Store, model: ResolvedModel, options: WorkerOptions) -> None:
        self._store, self._model, self._options = store, model, options
        self._device = threading.Lock()  # held while anything runs on the model
        self._view: ModelView | None = None
        self._dtype = ""
        self._metered: dict[tuple[str, str, tuple[Request, ...]], set[int]] = defaultdict(set)
        self._ended: dict[Artifact, str] = {}  # cells whose method cannot work, and why: it is not tried again

    def __call__(self, table: pa.Table) -> pa.Table:
        """Commit the unit; its report."""
        (unit,) = table.to_pylist()
        task, rows = task_of(unit), samples_of(unit, store=self._store)
        tokens = sum(len(row["input_ids"]) for row in rows)
        return reported(task.title, len(rows), tokens, lambda: self._run(task, rows))

    def _run(self, task: UnitTask, rows: Sequence[Row]) -> dict[str, Any]:
        """Explain and commit the unit; what there is to report of it."""
        from lrp_core.readout import rows_for

        attempts = Attempts(self._store, task.title, self._options.max_attempts, self._options.run)
        with self._free_device():
            view = self._loaded(task.dtype)
            rows = rows_for(view, self._model.taken(rows))
            attempts.begin()
            with attempts.survived():
                outcomes = self._explain(task, view, rows, attempts)
        with spending(COMMIT):
            failed, accounts = retried(lambda: self._commit(task, outcomes, len(rows), str(view.device)))
        attempts.clear()
        return {
            "accounts": json.dumps(accounts),
            "rejects": len({reject.sample_id for outcome in outcomes.values() for reject in outcome.rejects}),
            "splits": sum(outcome.splits for outcome in _distinct(outcomes)),
            "result": json.dumps([[asdict(cell), why] for cell, why in failed.items()]) if failed else None,
        }

    @contextmanager
    def _free_device(self) -> Iterator[None]:
        """This thread's alone, inside."""
        with spending(WAIT):
            self._device.acquire()
        try:
            yield
        finally:
            self._device.release()

    def _explain(self, task: UnitTask, view: ModelView, rows: Sequence[Row], attempts: Attempts) -> dict[str, Outcome]:
        """Outcomes by method, pass by pass. Methods of a pass that fails run apart; one that fails alone has ended."""
        from jobs.stages.attribute.compute import Explainer, MethodFailed

        settings = {name: getattr(self._options, name) for name in ("checkpoint", "byte_budget", "seed")}
        cells = {cell.method: cell for cell, _ in task.cells}
        wanted = tuple(r for cell, requests in task.cells if cell not in self._ended for r in requests)
        known = self._options.methods
        tuned = {name: known[own].configured(name, **options) for name, own, options in task.tuned}
        everything = Explainer(view, wanted, task.product, settings, {**known, **tuned})
        outcomes: dict[str, Outcome] = {}
        todo = everything.by_pass()
        while todo:
            requests = todo.pop(0)
            methods = list(dict.fromkeys(request.method for request in requests))
            metered = self._metered[task.product, task.dtype, requests]
            explainer = replace(everything, requests=requests, metered=metered)
            try:
                outcome = explain_unit(explainer, rows, task.cuts, attempts, "+".join(methods))
                outcomes |= dict.fromkeys(methods, outcome)
            except MethodFailed as error:
                if len(methods) > 1:
                    todo = explainer.by_method() + todo
                else:
                    self._ended[cells[methods[0]]] = str(error)
            except Exception as error:
                end_with_device(error, attempts)
                raise
        return outcomes

    def _loaded(self, dtype: str) -> ModelView:
        """The model in this precision; only one is held at a time."""
        if self._view is None or self._dtype != dtype:
            self._view = None
            with loading(self._store, self._model.config.name, self._options.max_attempts, self._options.run):
                self._view, self._dtype = self._open(dtype), dtype
        return self._view

    def _open(self, dtype: str) -> ModelView:
        return open_view(self._model, dtype, own_device(), self._options.seed)

    def _commit(
        self, task: UnitTask, outcomes: Mapping[str, Outcome], rows: int, device: str
    ) -> tuple[dict[Artifact, str], dict[str, Account]]:
        """Write the runtime, then the shards, which vouch for it.

        Returns the cells that get none, and why; and by path, what the driver need not read the shards for.
        """
        self._commit_runtime(task, outcomes, device)
        failed, accounts = {}, {}
        for cell, requests in task.cells:
            outcome = outcomes.get(cell.method)
            done = self._ended[cell] if outcome is None else self._commit_cell(task, cell, requests, outcome, rows)
            if isinstance(done, str):
                failed[cell] = done
            else:
                accounts[f"{cell.folder}/{cell.shard(task.name)}"] = done
        return failed, accounts

    def _commit_cell(
        self, task: UnitTask, cell: Artifact, requests: Sequence[Request], outcome: Outcome, rows: int
    ) -> str | Account:
        """Write the cell's shard, its rejects in it; how many samples it explains, and its rejects.

        Returns why there is none instead: the method gave what it must not, or failed on every row. Where the rows are
        so few that each may have failed on its own account, they are rejects all the same.
        """
        from jobs.stages.attribute import tables
        from jobs.stages.attribute.compute import describe, named

        try:
            table, unusable = tables.cell_table(task.product, task.dtype, requests, outcome.explained)
        except Exception as error:
            return describe(error)
        rejects = tables.merge_rejects(outcome, unusable)
        failed = [reject for reject in rejects if reject.reason != NO_FOIL]
        if len(failed) == rows > FEW:
            samples = named([reject.sample_id for reject in failed])
            return f"every row of a unit failed, {samples}: {_why(failed)}"
        path = f"{cell.folder}/{cell.shard(task.name)}"
        schema = schema_of(task.product, task.dtype)
        rejected = tables.reject_table(rejects)
        self._store.write_shard(path, table, schema, rejected)
        return pc.count_distinct(table["sample_id"]).as_py(), rejected.to_pylist()

    def _commit_runtime(self, task: UnitTask, outcomes: Mapping[str, Outcome], device: str) -> None:
        """What was timed now; earlier timings of other methods stay."""
        from jobs.stages.attribute import tables

        path = f"{self._store.runtime(task.model, task.task, task.dtype)}/{task.product}-{task.name}.parquet"
        timed = tables.runtime_table(task.name, [outcome.explained for outcome in _distinct(outcomes)], device)
        if timed.num_rows:
            with suppress(FileNotFoundError):
                timed = tables.with_earlier(timed, self._store.read(path, RUNTIME))
            self._store.write_shard(path, timed, RUNTIME)


def _distinct(outcomes: Mapping[str, Outcome]) -> list[Outcome]:
    """One outcome a pass: methods of one pass share theirs."""
    return list({id(outcome): outcome for outcome in outcomes.values()}.values())


def explain_unit(
    explainer: Explainer, rows: Sequence[Row], cuts: Sequence[int], attempts: Attempts, name: str
) -> Outcome:
    """All batches of a unit. A batch that has ended several workers, or holds a row that has, is taken row by row.

    `name` tells the passes of the unit apart.
    """
    from jobs.stages.attribute.compute import Outcome, explain

    outcome = Outcome()
    for index, batch in enumerate(_slices(rows, cuts)):
        mark = f"{index}|{name}"
        suspicious = attempts.ended_by(*(f"{row['sample_id']}|" for row in batch))  # in whichever pass
        if attempts.begin_batch(mark) or suspicious:
            _explain_suspects(explainer, batch, attempts, name, outcome)
        else:
            explain(explainer, batch, outcome)
        attempts.end_batch(mark)
    return outcome


def _explain_suspects(
    explainer: Explainer, batch: Sequence[Row], attempts: Attempts, name: str, outcome: Outcome
) -> None:
    from jobs.stages.attribute.compute import Reject, explain_singly

    for row in batch:
        mark = f"{row['sample_id']}|{name}"
        if attempts.begin_row(mark):
            detail = f"the process ended while explaining it{attempts.reason}"
            outcome.rejects.append(Reject(row["sample_id"], "ended_worker", detail))
            continue
        outcome.explained.extend(explain_singly(explainer, [row], outcome).values())
        attempts.end_row(mark)


def _why(failed: Sequence[Reject]) -> str:
    """Why rows failed: the detail that all share, else how many rows each reason has, with the detail of its first."""
    if len({reject.detail for reject in failed}) == 1:
        return failed[0].detail
    counts = Counter(reject.reason for reject in failed)
    first = {reject.reason: reject.detail for reject in reversed(failed)}
    return "; ".join(f"{rows} x {reason}, the first: {first[reason]}" for reason, rows in counts.most_common())


def _slices(rows: Sequence[Row], cuts: Sequence[int]) -> Iterator[Sequence[Row]]:
    for start, end in zip(cuts, [*cuts[1:], len(rows)], strict=True):
        yield rows[start:end]
