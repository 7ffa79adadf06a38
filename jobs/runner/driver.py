"""The driver of all products: it cuts units, has the missing ones computed by workers, and closes their nodes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import pyarrow as pa

from closelook.jobs.cluster.executor import end_kept
from closelook.jobs.cluster.pools import Reader, Work, connect
from closelook.jobs.cluster.reports import Report, reports_in
from closelook.jobs.cluster.scheduler import run_all
from closelook.jobs.plan.inputs import Inputs
from closelook.jobs.plan.node import ModelPlan, Node, Part, Run
from closelook.jobs.plan.units import Account, Task, WorkerOptions
from closelook.jobs.products.record import Product, Unit
from closelook.jobs.runner.closing import Reports, adopted, close
from closelook.jobs.runner.worker import Worker
from closelook.jobs.store import Artifact, Store

CHUNK_TOKENS = 2_000_000  # of units without a model: fewer are not worth a Ray task


@dataclass(frozen=True)
class Group:
    """Nodes of one product that share units: those of a model, task and precision."""

    product: Product
    nodes: tuple[Node, ...]
    units: Sequence[Unit]
    missing: Sequence[tuple[Unit, tuple[Part, ...] | None]]  # units with the parts that are not committed; None: all
    adopted: Mapping[str, Account] = field(default_factory=dict)  # shards that earlier runs committed, by path

    @property
    def place(self) -> Artifact:
        """The artifact of the first node: all nodes have its product, model, task and precision."""
        return self.nodes[0].artifact

    @property
    def plan(self) -> ModelPlan:
        """The plan of the nodes' model."""
        return self.nodes[0].plan

    def task(self, unit: Unit, parts: tuple[Part, ...] | None) -> Task:
        """The unit's task, which tells a worker what to compute."""
        artifact = self.place
        columns = (artifact.product, artifact.model, artifact.task, artifact.dtype, unit.name)
        return Task(
            product=artifact.product,
            title=".".join(filter(None, columns)),
            dtype=artifact.dtype,
            parts=unit.parts_of(self.nodes) if parts is None else parts,
            cuts=unit.cuts,
            tokens=unit.tokens,
            token_budget=unit.token_budget,
            size=unit.progress,
            rows=None if isinstance(unit.rows, np.ndarray) else tuple(unit.rows),
        )

    def unread(self, run: Run) -> Unread:
        """The missing units, whose rows are read later, when each is sent."""
        source = self.product.source
        rows = [unit.rows if isinstance(unit.rows, np.ndarray) else None for unit, _ in self.missing]
        has_samples = any(unit_rows is not None for unit_rows in rows)
        with_rows = source(run, self.nodes[0]) if source is not None and self.missing else None
        tasks = [self.task(*unit) for unit in self.missing]
        inputs = self.plan.inputs[self.place.task] if has_samples else None
        return Unread(tasks, inputs, rows, with_rows)

    @property
    def shards(self) -> dict[Node, list[str]]:
        """The names of all shards of each node, committed or not."""
        names: dict[Node, list[str]] = {node: [] for node in self.nodes}
        for unit in self.units:
            for part in unit.parts_of(self.nodes):
                names[part.node].append(part.shard)
        return names

    @property
    def size(self) -> int:
        """By how much the missing units advance the progress."""
        return sum(unit.progress for unit, _ in self.missing)


@dataclass(frozen=True)
class Unread:
    """Units of a group whose rows are read only when they are sent to a worker."""

    tasks: Sequence[Task]
    inputs: Inputs | None  # the samples; None if no unit has samples of the views
    rows: Sequence[np.ndarray | None]  # the samples of each unit: indices into the views; None: it has none
    with_rows: Callable[[Sequence[Task]], Iterator[Task]] | None  # reads rows that are not in the views

    def tables(self) -> Iterator[pa.Table]:
        """Yield the units as workers get them."""
        for task in self._tasks_with_rows():
            yield task.to_table()

    def _tasks_with_rows(self) -> Iterator[Task]:
        """Yield the tasks with their rows or samples."""
        if self.with_rows is not None:
            yield from self.with_rows(self.tasks)
            return
        for task, rows in zip(self.tasks, self.rows, strict=True):
            yield task if self.inputs is None or rows is None else replace(task, samples=self.inputs.select(rows))


def _tables(groups: Sequence[Unread]) -> Iterator[pa.Table]:
    """Yield the units of a model as workers get them. Ray Data does so in a process on the driver's machine."""
    for group in groups:
        yield from group.tables()


@dataclass
class ModelWork:
    """The missing units of one model, while they are computed."""

    run: Run
    groups: tuple[Group, ...]
    accounts: dict[str, Account] = field(default_factory=dict)  # of the shards that workers wrote, by path
    splits: int = 0
    failed: dict[Artifact, str] = field(default_factory=dict)  # nodes that cannot be computed, with the first reason

    @property
    def plan(self) -> ModelPlan:
        """The plan of the model."""
        return self.groups[0].plan

    def work(self) -> Work:
        """The work for the scheduler."""
        resolved, config = self.plan.resolved, self.run.config
        return Work(
            name=resolved.config.name,
            model=resolved.config,
            worker=Worker,
            arguments=(self.run.store, resolved, WorkerOptions.of(config, resolved.config)),
            size=sum(group.size for group in self.groups),
            units=sum(len(group.missing) for group in self.groups),
            reader=self.reader,
            on_report=self.add,
            on_end=self.close,
        )

    def reader(self) -> Reader:
        """The reader of the missing units."""
        return partial(_tables, [group.unread(self.run) for group in self.groups])

    def add(self, report: Report) -> None:
        """Keep what a worker reports about a unit: accounts of shards, splits, and nodes that failed."""
        self.splits += report.splits
        self.accounts |= report.accounts
        self.failed = {**report.failed, **self.failed}

    def close(self) -> Iterator[str]:
        """Write the manifests of the nodes that were computed. Yields a line for each failure."""
        yield from by_error(self.plan.name, self.failed)
        whys: list[str | None] = []
        for account in self.accounts.values():
            self.run.ledger.saw(account.files)
        for group in self.groups:
            enter = group.product.close or close
            reports = Reports({**group.adopted, **self.accounts}, self.splits)
            whys += [enter(self.run, node, shards, reports) for node, shards in group.shards.items()]
        yield from filter(None, whys)


def make(run: Run, products: Sequence[Product], nodes: Sequence[Node], stage: str, unit: str, alone: bool) -> list[str]:
    """Compute those of the `nodes` of these products that are not done. Returns the failures, a line each.

    Either all products need models, or none does. Nodes of one model share workers. The rest is as for `run_all`.
    """
    works = missing_work(run, products, nodes)
    if not all(product.on_model for product in products):
        return _make_without_models(run, works)
    return run_all(run.config, run.store, [work.work() for work in works], stage, unit, alone)


def _make_without_models(run: Run, works: Sequence[ModelWork]) -> list[str]:
    """Compute units that need no model. Returns the failures, a line each.

    Few units are computed in this process, many in Ray tasks of about CHUNK_TOKENS tokens.
    """
    options = WorkerOptions.of(run.config, None)
    chunks = list(_chunks(works))
    reported: Iterable[list[tuple[int, Report]]]
    if len(chunks) < 2:
        reported = (_reports(run.store, options, chunk) for chunk in chunks)
    else:
        end_kept()
        connect(run.config)
        import ray

        task = ray.remote(num_cpus=1)(_reports)
        reported = map(ray.get, [task.remote(run.store, options, chunk) for chunk in chunks])
    failures: list[str] = []
    for reports in reported:
        for index, report in reports:
            works[index].add(report)
            if report.error:
                failures.append(report.error)
    return [*failures, *(line for work in works for line in work.close())]


def _chunks(works: Sequence[ModelWork]) -> Iterator[list[tuple[int, pa.Table]]]:
    """Yield lists of missing units, about CHUNK_TOKENS tokens each; a unit comes with the index of its work."""
    chunk: list[tuple[int, pa.Table]] = []
    tokens = 0
    for index, work in enumerate(works):
        for group in work.groups:
            for (unit, _), table in zip(group.missing, group.unread(work.run).tables(), strict=True):
                chunk.append((index, table))
                tokens += unit.tokens
                if tokens >= CHUNK_TOKENS:
                    yield chunk
                    chunk, tokens = [], 0
    if chunk:
        yield chunk


def _reports(store: Store, options: WorkerOptions, units: Sequence[tuple[int, pa.Table]]) -> list[tuple[int, Report]]:
    """The reports of units that one worker computes without a model, each with the index of its work."""
    worker = Worker(store, None, options)
    return [(index, report) for index, unit in units for report in reports_in(worker(unit))]


def missing_work(run: Run, products: Sequence[Product], nodes: Iterable[Node]) -> list[ModelWork]:
    """The missing units of `nodes`, as one work for each model."""
    by_name = {product.name: product for product in products}
    by_model: dict[str, dict[tuple[str, ...], list[Node]]] = defaultdict(dict)
    for node in nodes:
        artifact = node.artifact
        together = by_model[artifact.model].setdefault((artifact.dtype, artifact.task, artifact.product), [])
        together.append(node)
    works = []
    for groups in by_model.values():
        ordered = sorted(groups, key=lambda key: key[0])  # one precision after another
        works.append(ModelWork(run, tuple(_group(run, by_name[key[-1]], groups[key]) for key in ordered)))
    return works


def _group(run: Run, product: Product, nodes: Sequence[Node]) -> Group:
    """The group of these nodes, with its units and those of them that are missing."""
    assert product.units is not None
    units = product.units(run, nodes)
    units = units if isinstance(units, Sequence) else tuple(units)
    existing = {path: account for node in nodes for path, account in adopted(run, product, node).items()}
    if not existing:
        return Group(product, tuple(nodes), units, [(unit, None) for unit in units])
    missing = ((unit, _missing_parts(unit.parts_of(nodes), existing)) for unit in units)
    return Group(product, tuple(nodes), units, [(unit, parts) for unit, parts in missing if parts], existing)


def _missing_parts(parts: tuple[Part, ...], existing: Collection[str]) -> tuple[Part, ...]:
    """The parts that are not committed, and those that share forward passes with them, on which rounding depends."""
    lacking = [part for part in parts if part.paths[0] not in existing]
    forwards = {part.node.forwards for part in lacking}
    return tuple(part for part in parts if part.node.forwards in forwards)


def by_error(model: str, failed: dict[Artifact, str]) -> Iterator[str]:
    """Yield a line for each error of a model's nodes, with the methods and artifacts that failed by it."""
    for error in dict.fromkeys(failed.values()):
        nodes = [node for node, why in failed.items() if why == error]
        methods = ", ".join(dict.fromkeys(node.method for node in nodes))
        places = ", ".join(dict.fromkeys(f"{node.product} {node.task}/{node.dtype}" for node in nodes))
        yield f"model {model}: {methods} failed on {places}: {error}"
