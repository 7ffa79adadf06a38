"""Attribute: tokenised views become relevance, one Ray Data pipeline and one pool of workers a model.

The driver cuts every task into units and works out which cells lack which units. Ray Data reads the samples of each
unit and hands it to a worker, which commits one shard to each of those cells. A cell with all its shards is complete.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa

from evaluation.benchmark.audit import rejected as in_words
from jobs.cluster.attempts import forget_loading
from jobs.cluster.pools import Share, Slots, cluster_slots, connect, prepare_dataset, share_of, uses_gpu
from jobs.cluster.progress import Progress
from jobs.config import RunConfig
from jobs.plan.cells import ModelPlan, Plan, PlannedCell, make_plan, without_samples
from jobs.plan.inputs import read_unit
from jobs.plan.units import Unit, cut_units
from jobs.stages.attribute.manifests import complete_cell, completed_units, rejected
from jobs.stages.attribute.worker import UnitTask, Worker, WorkerOptions
from jobs.stages.summary import StageSummary
from jobs.store import Artifact, Ledger, Store


@dataclass(frozen=True)
class ModelWork:
    """What is missing of one model: units with the cells they serve, and the cells they complete."""

    plan: ModelPlan
    units: tuple[tuple[Unit, UnitTask, str], ...]  # the last is the folder of the unit's views
    cells: tuple[tuple[PlannedCell, tuple[Unit, ...]], ...]

    @property
    def name(self) -> str:
        return self.plan.name

    def blocks(self) -> list[pa.Table]:
        """One row a unit: the task, the folder of its views, the rows to read there."""
        return [
            pa.table({"task": [task.to_json()], "views": [views], "rows": pa.array([unit.rows], pa.list_(pa.int32()))})
            for unit, task, views in self.units
        ]


def attribute(config: RunConfig, store: Store) -> StageSummary:
    """Compute every planned cell that is not complete. Raises UserError for what no run could do."""
    plan, ledger = make_plan(config, store), Ledger(store)
    work = missing_work(config, ledger, plan)
    wanted = sum(1 for _ in plan.cells())
    todo = sum(len(model.cells) for model in work)
    failures = {name: [why] for name, why in plan.failures.items()}
    if work:
        connect(config)
        failures |= _run_models(config, ledger, work)
    lines = [f"{todo} cells to compute, {wanted - todo} were complete"]
    for (model, task), rejects in without_samples(plan, ledger).items():
        lines.append(f"{model}/{task}: no sample fits the tokenizer, so its cells are empty: {in_words(rejects)}")
    computed = [planned.cell for model in work for planned, _ in model.cells]
    lines += _rejected(ledger, computed)
    incomplete = [str(cell) for cell in computed if not ledger.is_done(cell)]
    if incomplete:
        lines.append(f"{len(incomplete)} cells are not complete, among them {incomplete[0]}")
    problems = [why for model in failures.values() for why in model]
    problems += [] if problems else incomplete
    problems += [f"{model}: {task} is not prepared: run `closelook prepare`" for model, task in plan.unprepared]
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
    """The units that some incomplete cell lacks, by model, in the order of the configuration."""
    work = []
    for model in plan.models:
        budget = model.resolved.config.token_budget or config.token_budget
        units: list[tuple[Unit, UnitTask, str]] = []
        cells: list[tuple[PlannedCell, tuple[Unit, ...]]] = []
        for group in _groups(ledger, model):
            inputs = model.inputs[group[0].cell.task]
            size = config.heads[inputs.task] if config.heads and group[0].cell.product == "heads" else None
            cut = cut_units(inputs, inputs.subset(size, config.seed), budget, config.shard_rows)
            done = {planned.cell: completed_units(ledger, planned.cell, cut) for planned in group}
            for unit in cut:
                lacking = [planned for planned in group if unit.name not in done[planned.cell]]
                if lacking:
                    units.append((unit, _task(unit, lacking), inputs.folder))
            cells += [(planned, tuple(cut)) for planned in group]
        if cells:
            work.append(ModelWork(model, tuple(units), tuple(cells)))
    return work


def _groups(ledger: Ledger, model: ModelPlan) -> Iterator[list[PlannedCell]]:
    """Incomplete cells that share samples and precision: one pass computes them. One precision after another."""
    groups: dict[tuple[str, str, str], list[PlannedCell]] = {}
    for planned in model.cells:
        if not ledger.is_done(planned.cell):
            groups.setdefault((planned.cell.dtype, planned.cell.task, planned.cell.product), []).append(planned)
    for key in sorted(groups, key=lambda key: key[0]):
        yield groups[key]


def _task(unit: Unit, lacking: list[PlannedCell]) -> UnitTask:
    cell = lacking[0].cell
    cells = tuple((planned.cell, planned.requests) for planned in lacking)
    return UnitTask(unit.name, cell.product, cell.model, cell.task, cell.dtype, unit.cuts, cells)


def _run_models(config: RunConfig, ledger: Ledger, work: list[ModelWork]) -> dict[str, list[str]]:
    """Every model in a thread of its own as soon as its workers fit. Returns the failures by model."""
    on_gpu = uses_gpu(config)
    slots = cluster_slots(config, on_gpu)
    failures: dict[str, list[str]] = {}
    waiting: list[ModelWork] = []
    running: list[threading.Thread] = []
    for model in work:
        share = share_of(model.plan.resolved.config, on_gpu)
        if slots.room(share) < model.plan.resolved.config.workers[0]:
            failures[model.name] = [f"model {model.name} asks for more than the cluster has: {_asks(model, share)}"]
        else:
            waiting.append(model)
    with Progress({model.name: sum(len(unit.rows) for unit, _, _ in model.units) for model in waiting}) as progress:
        while waiting or any(thread.is_alive() for thread in running):
            running = [thread for thread in running if thread.is_alive()]
            if config.ray.max_models is None or len(running) < config.ray.max_models:
                started = _start_next(config, ledger, slots, waiting, on_gpu, progress, failures)
                if started is not None:
                    running.append(started)
                    continue
            slots.wait(timeout_s=1)
    return failures


def _start_next(
    config: RunConfig,
    ledger: Ledger,
    slots: Slots,
    waiting: list[ModelWork],
    on_gpu: bool,
    progress: Progress,
    failures: dict[str, list[str]],
) -> threading.Thread | None:
    """Start the first waiting model whose workers fit; None when none does."""
    for model in waiting:
        settings = model.plan.resolved.config
        share = share_of(settings, on_gpu)
        taken = slots.take(share, settings.workers[0], min(settings.workers[1], max(1, len(model.units))))
        if taken is None:
            continue
        waiting.remove(model)

        def run(model: ModelWork = model, share: Share = share, taken: list[int] = taken) -> None:
            try:
                failures[model.name] = run_model(config, ledger, model, share, len(taken), progress)
            except OSError as error:  # of the store: it says what is wrong
                failures[model.name] = [f"model {model.name}: {_first_line(error)}"]
            except Exception as error:  # whatever Ray raises ends this model, not the others
                failures[model.name] = [f"model {model.name}: {type(error).__name__}: {_first_line(error)}"]
            finally:
                slots.give_back(share, taken)

        thread = threading.Thread(target=run, name=f"closelook-{model.name}", daemon=True)
        thread.start()
        return thread
    return None


def run_model(
    config: RunConfig, ledger: Ledger, work: ModelWork, share: Share, workers: int, progress: Progress
) -> list[str]:
    """Stream the model's units through its pool, then close the cells they complete. Returns the failures."""
    failures: list[str] = []
    failed: dict[Artifact, str] = {}  # the first error of each
    splits, store = 0, ledger.store
    progress.begin(work.name)
    if work.units:
        reports = _pipeline(config, store, work, share, workers)
        for report in reports:
            store.check()
            progress.advance(work.name, report["rows"], report["tokens"])
            splits += report["splits"]
            for cell, why in json.loads(report["failed"] or "[]"):
                failed.setdefault(Artifact(**cell), why)
            if report["error"] and not failures:
                failures.append(report["error"])
            if report["fatal"]:
                break
        forget_loading(store, work.name)
    failures += _by_error(work.name, failed)
    closed = (complete_cell(config, ledger, work.plan, planned, units, splits) for planned, units in work.cells)
    return failures + [why for why in closed if why is not None]


def _by_error(model: str, failed: dict[Artifact, str]) -> Iterator[str]:
    """A line for each error, with the methods that met it and where."""
    for error in dict.fromkeys(failed.values()):
        cells = [cell for cell, why in failed.items() if why == error]
        methods = ", ".join(dict.fromkeys(cell.method for cell in cells))
        places = ", ".join(dict.fromkeys(f"{cell.product} {cell.task}/{cell.dtype}" for cell in cells))
        yield f"model {model}: {methods} failed on {places}: {error}"


def _pipeline(config: RunConfig, store: Store, work: ModelWork, share: Share, workers: int) -> Iterator[dict[str, Any]]:
    """The Ray Data pipeline of one model: read a unit's samples, attribute them, report."""
    import ray.data

    dataset = (
        ray.data.from_arrow(work.blocks())
        .map_batches(
            partial(read_unit, store=store),
            compute=ray.data.TaskPoolStrategy(size=workers),
            batch_size=1,
            batch_format="pyarrow",
            num_cpus=0,
        )
        .map_batches(
            Worker,
            fn_constructor_args=[store, work.plan.resolved, WorkerOptions.of(config, work.plan.resolved.config)],
            compute=ray.data.ActorPoolStrategy(size=workers),
            batch_size=1,
            batch_format="pyarrow",
            num_gpus=share.gpus,
            num_cpus=share.cpus,
            label_selector=dict(share.labels) or None,
        )
    )
    prepare_dataset(dataset, f"attribute-{work.name}", config)
    yield from dataset.iter_rows()


def _asks(model: ModelWork, share: Share) -> str:
    wanted = f"{model.plan.resolved.config.workers[0]} x {share.size:g} {'GPU' if share.gpus else 'CPU'}"
    labels = ", ".join(f"{key}={value}" for key, value in share.labels)
    return f"{wanted} on nodes labelled {labels}" if labels else wanted


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [""])[0]
