"""Attribute: tokenised views become relevance, one pool of workers a model.

The driver cuts every task into units and works out which cells lack which units. A worker gets the samples of a
unit and commits one shard to each of those cells. A cell with all its shards is complete.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa

from evaluation.benchmark.audit import rejected as in_words
from jobs.cluster.scheduler import Report, Work, run_all
from jobs.config import RunConfig
from jobs.plan.cells import ModelPlan, Plan, PlannedCell, make_plan, without_samples
from jobs.plan.products.relevance import RELEVANCE
from jobs.plan.units import Unit, cut_units
from jobs.stages.attribute.manifests import complete_cell, completed_units, rejected
from jobs.stages.attribute.worker import UnitTask, Worker, WorkerOptions
from jobs.stages.summary import StageSummary
from jobs.store import Artifact, Ledger, Store


@dataclass(frozen=True)
class ModelWork:
    """What is missing of a model in precisions that share workers: units with the cells they serve, and the cells."""

    plan: ModelPlan
    name: str
    dtypes: tuple[str, ...]
    units: tuple[tuple[Unit, tuple[PlannedCell, ...]], ...]  # each with the cells that lack it
    cells: tuple[tuple[PlannedCell, Sequence[Unit]], ...]

    def blocks(self) -> Sequence[Callable[[], pa.Table]]:
        """What makes the table of each unit. Nothing is made before its turn: units of many models are many."""
        return _Blocks(self)

    def block(self, unit: Unit, lacking: Sequence[PlannedCell]) -> pa.Table:
        return self.plan.inputs[lacking[0].cell.task].unit(_task(unit, lacking), unit.rows)


class _Blocks(Sequence[Callable[[], pa.Table]]):
    def __init__(self, work: ModelWork) -> None:
        self._work = work

    def __len__(self) -> int:
        return len(self._work.units)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[at] for at in range(*index.indices(len(self)))]
        return partial(self._work.block, *self._work.units[index])


def attribute(config: RunConfig, store: Store) -> StageSummary:
    """Compute every planned cell that is not complete. Raises UserError for what no run could do."""
    plan, ledger = make_plan(config, store), Ledger(store)
    for planned in plan.cells():
        ledger.discard_damaged(planned.cell)
    work = missing_work(config, ledger, plan)
    wanted = sum(1 for _ in plan.cells())
    todo = sum(len(model.cells) for model in work)
    problems = [*plan.failures.values()]
    works = [work_of(config, ledger, model) for model in work]
    problems += run_all(config, store, works, stage="attribute", unit="rows")
    lines = [f"{todo} cells to compute, {wanted - todo} were complete"]
    for (model, task), rejects in without_samples(plan, ledger).items():
        lines.append(f"{model}/{task}: no sample fits the tokenizer, so its cells are empty: {in_words(rejects)}")
    computed = [planned.cell for model in work for planned, _ in model.cells]
    lines += _rejected(ledger, computed)
    incomplete = [str(cell) for cell in computed if not ledger.is_done(cell)]
    if incomplete:
        lines.append(f"{len(incomplete)} cells are not complete, among them {incomplete[0]}")
    problems += [] if problems else incomplete
    problems += [f"{model}: {task} is not prepared: run `closelook prepare`" for model, task in plan.unprepared]
    problems += [f"{choice}: its options are not chosen: run `closelook select`" for choice in plan.undecided]
    return StageSummary("attribute", todo - len(incomplete), wanted - todo, tuple(problems), tuple(lines))


def _rejected(ledger: Ledger, cells: Iterable[Artifact]) -> list[str]:
    """A line for the rejects that cells of one place have in common, with the methods that have them."""
    groups: dict[tuple[str, str], list[str]] = {}
    for cell in cells:
        record = ledger.record(cell)
        if record is not None and record["rejects"]:
            place = f"{cell.product} {cell.model}/{cell.task}/{cell.dtype}"
            groups.setdefault((place, rejected(record)), []).append(cell.method)
    return [f"{place}: rejected {rows} ({', '.join(methods)})" for (place, rows), methods in groups.items()]


def missing_work(config: RunConfig, ledger: Ledger, plan: Plan) -> list[ModelWork]:
    """The units that some incomplete cell lacks, by model and precisions that share workers, in the order of models."""
    work = []
    for model in plan.models:
        groups = list(_groups(ledger, model))
        for dtypes in config.together(group[0].cell.dtype for group in groups):
            own = [group for group in groups if group[0].cell.dtype in dtypes]
            work.append(_missing_of(config, ledger, model, own, dtypes))
    return work


def _missing_of(
    config: RunConfig,
    ledger: Ledger,
    model: ModelPlan,
    groups: Sequence[Sequence[PlannedCell]],
    dtypes: tuple[str, ...],
) -> ModelWork:
    budget = model.resolved.config.token_budget or config.token_budget
    units: list[tuple[Unit, tuple[PlannedCell, ...]]] = []
    cells: list[tuple[PlannedCell, Sequence[Unit]]] = []
    for group in groups:
        inputs = model.inputs[group[0].cell.task]
        product = group[0].cell.product
        size = None if product == RELEVANCE.name else config.finer(product)[inputs.task]
        cut = cut_units(inputs, inputs.subset(size, config.seed), budget, config.shard_rows)
        done = {planned.cell: completed_units(ledger, planned.cell, cut) for planned in group}
        lacking_all = tuple(group)  # of most units, shared
        for unit in cut:
            lacking = tuple(planned for planned in group if unit.name not in done[planned.cell])
            if lacking:
                units.append((unit, lacking_all if len(lacking) == len(group) else lacking))
        cells += [(planned, cut) for planned in group]
    name = config.pool_name(model.resolved.config, dtypes)
    return ModelWork(model, name, dtypes, tuple(units), tuple(cells))


def _groups(ledger: Ledger, model: ModelPlan) -> Iterator[list[PlannedCell]]:
    """Incomplete cells that share samples and precision: one pass computes them. One precision after another."""
    groups: dict[tuple[str, str, str], list[PlannedCell]] = {}
    for planned in model.cells:
        if not ledger.is_done(planned.cell):
            groups.setdefault((planned.cell.dtype, planned.cell.task, planned.cell.product), []).append(planned)
    for key in sorted(groups, key=lambda key: key[0]):
        yield groups[key]


def _task(unit: Unit, lacking: Sequence[PlannedCell]) -> UnitTask:
    cell = lacking[0].cell
    cells = tuple((planned.cell, planned.requests) for planned in lacking)
    tuned = tuple((p.cell.method, p.cell.method, dict(p.chosen)) for p in lacking if p.chosen)
    return UnitTask(unit.name, cell.product, cell.model, cell.task, cell.dtype, unit.cuts, cells, tuned)


def work_of(config: RunConfig, ledger: Ledger, work: ModelWork) -> Work:
    """What the scheduler runs of a model."""
    return _Running(config, ledger, work).work()


class _Running:
    """A model's cells while its units are computed: what reports say of them, and how they are closed."""

    def __init__(self, config: RunConfig, ledger: Ledger, work: ModelWork) -> None:
        self._config, self._ledger, self._work = config, ledger, work
        self._failed: dict[Artifact, str] = {}  # the first error of each
        self._splits = 0
        self._accounts: dict[str, tuple[int, list[dict[str, Any]]]] = {}  # of shards that this run committed

    def work(self) -> Work:
        """What the scheduler runs."""
        resolved = self._work.plan.resolved
        return Work(
            name=self._work.name,
            model=resolved.config,
            blocks=self._work.blocks(),
            worker=Worker,
            arguments=(self._ledger.store, resolved, WorkerOptions.of(self._config, resolved.config)),
            size=sum(len(unit.rows) for unit, _ in self._work.units),
            dtypes=self._work.dtypes,
            at_once=2,
            on_report=self._add,
            on_end=self._close,
        )

    def _add(self, report: Report) -> None:
        self._splits += report["splits"]
        self._accounts |= json.loads(report["accounts"] or "{}")
        for cell, why in json.loads(report["result"] or "[]"):
            self._failed.setdefault(Artifact(**cell), why)

    def _close(self) -> Iterator[str]:
        """Close the cells that are complete. Yields the failures of methods and of cells."""
        yield from by_error(self._work.name, self._failed)
        for planned, units in self._work.cells:
            why = complete_cell(
                self._config, self._ledger, self._work.plan, planned, units, self._splits, accounts=self._accounts
            )
            if why is not None:
                yield why


def by_error(model: str, failed: dict[Artifact, str]) -> Iterator[str]:
    """A line for each error, with the methods that met it and where."""
    for error in dict.fromkeys(failed.values()):
        cells = [cell for cell, why in failed.items() if why == error]
        methods = ", ".join(dict.fromkeys(cell.method for cell in cells))
        places = ", ".join(dict.fromkeys(f"{cell.product} {cell.task}/{cell.dtype}" for cell in cells))
        yield f"model {model}: {methods} failed on {places}: {error}"
