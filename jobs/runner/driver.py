"""The driver of every product: it cuts units, sends those that are missing through workers, and closes their nodes."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from jobs.cluster.hosts import end_kept
from jobs.cluster.pools import connect
from jobs.cluster.scheduler import run_all
from jobs.cluster.work import Report, Work
from jobs.plan.inputs import Inputs, unit_without_views
from jobs.plan.node import ModelPlan, Node, Part, Run
from jobs.products.record import Product, Unit
from jobs.runner.closing import Told, adopted, close
from jobs.runner.task import Account, Task, WorkerOptions
from jobs.runner.worker import Worker
from jobs.store import Artifact, Store

CHUNK_TOKENS = 2_000_000  # of units without a model that are worth a Ray task of their own


@dataclass(frozen=True)
class Group:
    """Nodes that share units: those of a product for a model, precision and task."""

    product: Product
    nodes: tuple[Node, ...]
    units: Sequence[Unit]
    missing: Sequence[tuple[Unit, tuple[Part, ...] | None]]  # with parts that are not committed; None: all of them
    adopted: Mapping[str, Account] = field(default_factory=dict)  # shards that earlier runs committed, by path

    @property
    def place(self) -> Artifact:
        return self.nodes[0].artifact

    @property
    def plan(self) -> ModelPlan:
        return self.nodes[0].plan

    def table(self, unit: Unit, parts: tuple[Part, ...] | None) -> pa.Table:
        """A unit as a worker gets it."""
        task = self.task(unit, parts)
        if isinstance(unit.rows, np.ndarray):
            return self.plan.inputs[self.place.task].unit(task, unit.rows)
        return unit_without_views(task)

    def task(self, unit: Unit, parts: tuple[Part, ...] | None) -> Task:
        """A unit as it travels."""
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
        """The missing units, to be read in their turn."""
        source, units = self.product.source, [unit for unit, _ in self.missing]
        rows = [unit.rows if isinstance(unit.rows, np.ndarray) else None for unit in units]
        return Unread(
            tasks=[self.task(*unit) for unit in self.missing],
            inputs=self.plan.inputs[self.place.task] if any(of is not None for of in rows) else None,
            rows=rows,
            with_rows=None if source is None or not units else source(run, self.nodes[0]),
        )

    @property
    def shards(self) -> dict[Node, list[str]]:
        """The names of all shards of each node."""
        names: dict[Node, list[str]] = {node: [] for node in self.nodes}
        for unit in self.units:
            for part in unit.parts_of(self.nodes):
                names[part.node].append(part.shard)
        return names

    @property
    def size(self) -> int:
        """The sum of the counts of the missing units' reports."""
        return sum(unit.progress for unit, _ in self.missing)


@dataclass(frozen=True)
class Unread:
    """Units whose rows are read as they are sent."""

    tasks: Sequence[Task]
    inputs: Inputs | None  # that units take samples of
    rows: Sequence[np.ndarray | None]  # the samples of each unit, indices into the views; None: it is about none
    with_rows: Callable[[Sequence[Task]], Iterator[Task]] | None  # reads rows of another source

    def tables(self) -> Iterator[pa.Table]:
        """The units as workers get them."""
        if self.with_rows is not None:
            yield from map(unit_without_views, self.with_rows(self.tasks))
            return
        for task, rows in zip(self.tasks, self.rows, strict=True):
            if self.inputs is None or rows is None:
                yield unit_without_views(task)
            else:
                yield self.inputs.unit(task, rows)


@dataclass(frozen=True)
class Reader:
    """Reads the units of a work, one after the other, where the driver runs: Ray Data calls it in a process there."""

    groups: Sequence[Unread]

    def __call__(self) -> Iterator[pa.Table]:
        for group in self.groups:
            yield from group.tables()


@dataclass
class ModelWork:
    """The missing units of a model, in precisions that share workers, while they are computed."""

    run: Run
    name: str
    dtypes: tuple[str, ...]
    groups: tuple[Group, ...]
    accounts: dict[str, Account] = field(default_factory=dict)  # of workers, by path of a shard
    splits: int = 0
    failed: dict[Artifact, str] = field(default_factory=dict)  # nodes that cannot be computed, with the first reason

    @property
    def plan(self) -> ModelPlan:
        return self.groups[0].plan

    def work(self) -> Work:
        """The work as the scheduler runs it."""
        resolved, config = self.plan.resolved, self.run.config
        return Work(
            name=self.name,
            model=resolved.config,
            blocks=(),
            worker=Worker,
            arguments=(self.run.store, resolved, WorkerOptions.of(config, resolved.config)),
            size=sum(group.size for group in self.groups),
            dtypes=self.dtypes,
            at_once=2,
            on_report=self.add,
            on_end=self.close,
            reader=self.reader,
            read=sum(len(group.missing) for group in self.groups),
        )

    def reader(self) -> Reader:
        """The reader of the missing units."""
        return Reader([group.unread(self.run) for group in self.groups])

    def add(self, report: Report) -> None:
        """Keep what a worker reports of a unit."""
        self.splits += report["splits"]
        for path, account in json.loads(report["accounts"] or "{}").items():
            self.accounts[path] = Account.from_json(account)
        for node, why in json.loads(report["result"] or "[]"):
            self.failed.setdefault(Artifact(**node), why)

    def close(self) -> Iterator[str]:
        """Enter the nodes that were computed. Yields the failures of nodes."""
        yield from by_error(self.plan.name, self.failed)
        whys: list[str | None] = []
        for account in self.accounts.values():
            self.run.ledger.saw(account.files)
        with self.run.ledger.together():
            for group in self.groups:
                enter = group.product.close or close
                reports = Told(group.product, {**group.adopted, **self.accounts}, self.splits)
                whys += [enter(self.run, node, shards, reports) for node, shards in group.shards.items()]
        yield from filter(None, whys)


def make(run: Run, products: Sequence[Product], nodes: Sequence[Node], stage: str, unit: str) -> list[str]:
    """Compute the nodes of these products that are not done; the products all need models, or none does.

    Returns the failures. `stage` and `unit` are what progress calls the work and what it counts. Nodes of one model
    share workers.
    """
    works = missing_work(run, products, nodes)
    if not all(product.on_model for product in products):
        return _make_without_models(run, works)
    return run_all(run.config, run.store, [work.work() for work in works], stage=stage, unit=unit)


def _make_without_models(run: Run, works: Sequence[ModelWork]) -> list[str]:
    """Compute units that need no model: in this process where they are few, else in Ray tasks that are worth starting.

    Returns the failures.
    """
    options = WorkerOptions.of(run.config, None)
    chunks = list(_chunks(works))
    if len(chunks) < 2:
        reported = [_reports(run.store, options, chunk) for chunk in chunks]
    else:
        end_kept()
        connect(run.config)
        import ray

        task = ray.remote(num_cpus=1)(_reports)
        reported = ray.get([task.remote(run.store, options, chunk) for chunk in chunks])
    failures: list[str] = []
    for reports in reported:
        for index, report in reports:
            works[index].add(report)
            if report["error"]:
                failures.append(report["error"])
    return [*failures, *(line for work in works for line in work.close())]


def _chunks(works: Sequence[ModelWork]) -> Iterator[list[tuple[int, pa.Table]]]:
    """The missing units, each with the index of its work, in runs of about CHUNK_TOKENS tokens."""
    chunk: list[tuple[int, pa.Table]] = []
    tokens = 0
    for index, work in enumerate(works):
        for group in work.groups:
            for unit, parts in group.missing:
                chunk.append((index, group.table(unit, parts)))
                tokens += unit.tokens
                if tokens >= CHUNK_TOKENS:
                    yield chunk
                    chunk, tokens = [], 0
    if chunk:
        yield chunk


def _reports(store: Store, options: WorkerOptions, units: Sequence[tuple[int, pa.Table]]) -> list[tuple[int, Report]]:
    """The reports of units that one worker computes without a model, each with the index of its work."""
    worker = Worker(store, None, options)
    return [(index, report) for index, unit in units for report in worker(unit).to_pylist()]


def missing_work(run: Run, products: Sequence[Product], nodes: Iterable[Node]) -> list[ModelWork]:
    """The missing units of nodes that are not done, by model and precisions that share workers."""
    by_name = {product.name: product for product in products}
    by_model: dict[str, dict[tuple[str, ...], list[Node]]] = defaultdict(dict)
    for node in nodes:
        artifact = node.artifact
        together = by_model[artifact.model].setdefault((artifact.dtype, artifact.task, artifact.product), [])
        together.append(node)
    works = []
    for groups in by_model.values():
        ordered = [groups[key] for key in sorted(groups, key=lambda key: key[0])]  # one precision after another
        for dtypes in run.config.together(nodes[0].artifact.dtype for nodes in ordered):
            of_dtypes = [nodes for nodes in ordered if nodes[0].artifact.dtype in dtypes]
            made = tuple(_group(run, by_name[nodes[0].artifact.product], nodes) for nodes in of_dtypes)
            name = run.config.pool_name(made[0].plan.resolved.config, dtypes)
            works.append(ModelWork(run, name, dtypes, made))
    return works


def _group(run: Run, product: Product, nodes: Sequence[Node]) -> Group:
    assert product.units is not None
    units = product.units(run, nodes)
    units = units if isinstance(units, Sequence) else tuple(units)
    existing = {path: account for node in nodes for path, account in adopted(run, product, node).items()}
    if not existing:
        return Group(product, tuple(nodes), units, [(unit, None) for unit in units])
    missing = ((unit, _missing_parts(unit.parts_of(nodes), existing)) for unit in units)
    return Group(product, tuple(nodes), units, [(unit, parts) for unit, parts in missing if parts], existing)


def _missing_parts(parts: tuple[Part, ...], existing: Collection[str]) -> tuple[Part, ...]:
    """The parts that are not committed, and those that share forwards with them.

    Numbers may depend, within rounding, on what shares forwards: a part made again gives the bytes that it gave.
    """
    lacking = [part for part in parts if part.paths[0] not in existing]
    forwards = {part.node.forwards for part in lacking}
    return tuple(part for part in parts if part.node.forwards in forwards)


def by_error(model: str, failed: dict[Artifact, str]) -> Iterator[str]:
    """A line for each error, with the methods that met it and where."""
    for error in dict.fromkeys(failed.values()):
        nodes = [node for node, why in failed.items() if why == error]
        methods = ", ".join(dict.fromkeys(node.method for node in nodes))
        places = ", ".join(dict.fromkeys(f"{node.product} {node.task}/{node.dtype}" for node in nodes))
        yield f"model {model}: {methods} failed on {places}: {error}"
