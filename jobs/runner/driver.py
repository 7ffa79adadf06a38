"""The driver of all products: it cuts units, has the missing ones computed by workers, and closes their nodes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import pyarrow as pa

from closelook.jobs.cluster.executor import end_kept
from closelook.jobs.cluster.pools import Reader, Work, connect
from closelook.jobs.cluster.reports import Report, reports_in
from closelook.jobs.cluster.scheduler import run_all
from closelook.jobs.plan.inputs import Inputs
from closelook.jobs.plan.node import ModelPlan, Node, Run
from closelook.jobs.plan.units import Account, Unit, WorkerOptions
from closelook.jobs.products.record import Product
from closelook.jobs.runner.closing import adopted, close
from closelook.jobs.runner.worker import Worker
from closelook.jobs.store import Artifact, Store

CHUNK_TOKENS = 2_000_000  # of units without a model: fewer are not worth a Ray task

#: Units, the samples that their rows are indices of (None: of none), and what reads rows that are not in the views.
Unread = tuple[Sequence[Unit], Inputs | None, Callable[[Sequence[Unit]], Iterator[Unit]] | None]


@dataclass(frozen=True)
class Group:
    """Nodes of one product that share units: those of a model, task and precision."""

    product: Product
    nodes: tuple[Node, ...]
    units: Sequence[Unit]
    missing: Sequence[Unit]  # with the parts that are not committed
    adopted: Mapping[str, Account]  # shards that earlier runs committed, by path

    def unread(self, run: Run) -> Unread:
        """The missing units, whose rows are read later, when each is sent."""
        node, source = self.nodes[0], self.product.source
        has_samples = any(isinstance(unit.rows, np.ndarray) for unit in self.missing)
        with_rows = source(run, node) if source is not None and self.missing else None
        return self.missing, node.inputs if has_samples else None, with_rows

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
        return sum(unit.progress for unit in self.missing)


def _tables(groups: Iterable[Unread]) -> Iterator[pa.Table]:
    """Yield units with their rows, as workers get them. Ray Data does so in a process on the driver's machine."""
    for units, inputs, with_rows in groups:
        for unit in units if with_rows is None else with_rows(units):
            if inputs is not None and isinstance(unit.rows, np.ndarray):
                yield replace(unit, rows=inputs.select(unit.rows)).to_table()
            else:
                yield unit.to_table()


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
        return self.groups[0].nodes[0].plan

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
        for error in dict.fromkeys(self.failed.values()):
            failed = [artifact for artifact, why in self.failed.items() if why == error]
            methods = ", ".join(dict.fromkeys(artifact.method for artifact in failed))
            places = ", ".join(dict.fromkeys(f"{at.product} {at.task}/{at.dtype}" for at in failed))
            yield f"model {self.plan.name}: {methods} failed on {places}: {error}"
        failures: list[str | None] = []
        for account in self.accounts.values():
            self.run.ledger.saw(account.files)
        for group in self.groups:
            accounts = {**group.adopted, **self.accounts}
            end = group.product.close or partial(close, product=group.product, splits=self.splits)
            failures += [end(self.run, node, shards, accounts) for node, shards in group.shards.items()]
        yield from filter(None, failures)


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
        units = (unit for group in work.groups for unit in group.missing)
        for unit, table in zip(units, work.reader()(), strict=True):
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
    """The group of these nodes, with its units and those of them that are missing.

    A missing unit has the parts that are not committed, and those that share forward passes with them, on which
    rounding depends.
    """
    assert product.units is not None
    units = tuple(product.units(run, nodes))
    existing = {path: account for node in nodes for path, account in adopted(run, product, node).items()}
    missing = []
    for unit in units:
        parts = unit.parts_of(nodes)
        forwards = {part.node.forwards for part in parts if part.paths[0] not in existing}
        if forwards:
            missing.append(replace(unit, parts=tuple(part for part in parts if part.node.forwards in forwards)))
    return Group(product, tuple(nodes), units, missing, existing)
