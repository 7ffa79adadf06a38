"""Perturb: relevance becomes curves of what the model says as tokens go, one pool of workers a model (AttnLRP B.2).

The driver cuts the samples of each task into units and finds the shards of relevance that say something of them; a
worker draws the curves of all methods of a unit together and commits a shard to the curves' cell of each.
"""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np
import pyarrow as pa

from evaluation.schema import RELEVANCE, RELEVANCE_DOUBLE
from evaluation.scoring.flips import Flips
from jobs.cluster.scheduler import Report, Work, run_all
from jobs.config import PerturbConfig, RunConfig
from jobs.plan.cells import ModelPlan, make_plan
from jobs.plan.inputs import Inputs
from jobs.plan.products.curves import PerturbedCell, subset, wanted_cells
from jobs.plan.spool import gather
from jobs.plan.units import FORWARD_FACTOR, Unit, cut_by_tokens
from jobs.stages.attribute.manifests import complete_cell, completed_units, rejected
from jobs.stages.perturb.worker import CellPart, CurvesTask, Perturber
from jobs.stages.summary import StageSummary
from jobs.store import Artifact, Ledger, Store
from lrp_core.types import UserError

UNIT_TOKENS = 2_000_000  # of the forwards of one method in one way, before equal states merge


def perturb(config: RunConfig, store: Store) -> StageSummary:
    """Draw every configured curve whose relevance is complete and that is not drawn yet.

    Raises UserError for a task none of whose tokens may be flipped.
    """
    settings = config.perturb or PerturbConfig()
    plan, ledger = make_plan(config, store), Ledger(store)
    wanted = [cell for model in plan.models for cell in wanted_cells(config, settings, model)]
    todo = [cell for cell in wanted if not ledger.is_done(cell.artifact)]
    for cell in todo:
        ledger.discard_damaged(cell.artifact)
    failures = list(plan.failures.values())
    failures += [f"{model}: {task} is not prepared: run `closelook prepare`" for model, task in plan.unprepared]
    undecided = (c for c in plan.undecided if settings.takes(task=c.artifact.task, method=c.artifact.method))
    failures += [f"{choice}: its options are not chosen: run `closelook select`" for choice in undecided]
    pools: dict[str, list[PerturbedCell]] = defaultdict(list)
    for cell in todo:
        if ledger.is_done(cell.relevance):
            pools[cell.model.name].append(cell)
        else:
            failures.append(f"{cell.relevance} is not complete: run `closelook attribute`")
    works = [
        _work(config, settings, ledger, [cell for cell in pool if cell.artifact.dtype in dtypes], dtypes)
        for pool in pools.values()
        for dtypes in config.together(cell.artifact.dtype for cell in pool)
    ]
    failures += run_all(config, store, works, stage="perturb", unit="samples")
    drawn = sum(ledger.is_done(cell.artifact) for cell in todo)
    lines = [f"{drawn} sets of curves drawn, {len(wanted) - len(todo)} were up to date"]
    for cell in todo:
        record = ledger.record(cell.artifact)
        if record is not None and record["rejects"]:
            lines.append(f"{cell.artifact}: rejected {rejected(record)}")
    return StageSummary("perturb", drawn, len(wanted) - len(todo), tuple(dict.fromkeys(failures)), tuple(lines))


def _work(
    config: RunConfig,
    settings: PerturbConfig,
    ledger: Ledger,
    pool: Sequence[PerturbedCell],
    dtypes: tuple[str, ...],
) -> Work:
    """The missing curves of a model in precisions that share workers; cells that are whole then are complete."""
    model = pool[0].model
    by_task: dict[str, list[PerturbedCell]] = defaultdict(list)
    for cell in pool:
        by_task[cell.artifact.task].append(cell)
    blocks: list[tuple[str, Callable[[], pa.Table], int]] = []
    cuts: dict[Artifact, list[Unit]] = {}
    for task, cells in by_task.items():
        inputs, rows = model.inputs[task], subset(config, settings, model, task)
        check_flippable(cells[0].flips, model, inputs, rows)
        units = cut_by_tokens(inputs, rows, forward_tokens(inputs, cells[0].flips), UNIT_TOKENS)
        cuts |= {cell.artifact: units for cell in cells}
        blocks += _blocks(config, settings, ledger, cells, units)
    blocks.sort(key=lambda block: block[0])  # one precision after another
    splits = 0

    def count(report: Report) -> None:
        nonlocal splits
        splits += report["splits"]

    def close() -> Iterator[str]:
        closed = (complete_cell(config, ledger, model, c.planned, cuts[c.artifact], splits) for c in pool)
        return (why for why in closed if why is not None)

    return Work(
        name=config.pool_name(model.resolved.config, dtypes),
        model=model.resolved.config,
        blocks=[block for _, block, _ in blocks],
        worker=Perturber,
        arguments=(ledger.store, model.resolved, config.seed, config.max_attempts, uuid.uuid4().hex),
        size=sum(size for _, _, size in blocks),
        dtypes=dtypes,
        on_report=count,
        on_end=close,
    )


def _blocks(
    config: RunConfig, settings: PerturbConfig, ledger: Ledger, cells: Sequence[PerturbedCell], units: Sequence[Unit]
) -> Iterator[tuple[str, Callable[[], pa.Table], int]]:
    """(precision, what makes its table, samples) of each unit that some of the cells of one task lack.

    All of the cells are drawn, also those that have the unit: a unit drawn again is drawn as it was, to the byte.
    """
    first = cells[0]
    inputs, dtype = first.model.inputs[first.artifact.task], first.artifact.dtype
    done = [completed_units(ledger, cell.artifact, units) for cell in cells]
    lacking = [unit for unit in units if not all(unit.name in names for names in done)]
    shards = [_shards_by_sample(ledger, cell.relevance) if lacking else {} for cell in cells]
    ids = inputs.ids.to_pylist()
    budget = FORWARD_FACTOR * (first.model.resolved.config.token_budget or config.token_budget)
    for unit in lacking:
        parts = tuple(
            CellPart(
                method=cell.artifact.method,
                relevance=tuple(dict.fromkeys(own[ids[row]] for row in unit.rows if ids[row] in own)),
                variants=tuple((request.explanation, request.embedding) for request in cell.planned.requests),
                path=f"{cell.artifact.folder}/{cell.artifact.shard(unit.name)}",
            )
            for cell, own in zip(cells, shards, strict=True)
        )
        variants = sum(len(part.variants) for part in parts)
        task = CurvesTask(
            title=f"curves.{first.artifact.model}.{first.artifact.task}.{dtype}.{unit.name}",
            dtype=dtype,
            cells=parts,
            flips=first.flips,
            token_budget=budget,
            tokens=unit.tokens * variants,
        )
        yield dtype, partial(inputs.unit, task, unit.rows), len(unit.rows)


def _shards_by_sample(ledger: Ledger, relevance: Artifact) -> dict[str, str]:
    """Which shard of a relevance cell has a sample."""
    schema = RELEVANCE_DOUBLE if relevance.dtype == "float64" else RELEVANCE
    return {
        sample: path
        for path in ledger.files(relevance)
        for sample in ledger.store.read(path, schema, ["sample_id"])["sample_id"].to_pylist()
    }


def forward_tokens(inputs: Inputs, flips: Sequence[Flips]) -> np.ndarray:
    """Tokens of the forwards that the curves of each sample take [N], before equal states merge."""
    return sum((2 * inputs.lengths * one.most_states(inputs.lengths) for one in flips), np.zeros_like(inputs.lengths))


def check_flippable(flips: Sequence[Flips], model: ModelPlan, inputs: Inputs, rows: np.ndarray) -> None:
    """Raises UserError where no token of any sample may go; single samples are rejects. Of images, every pixel may."""
    if any(one.pixels for one in flips):
        return
    slot, error = model.resolved.kind.slot, None
    for row in gather(inputs.table, rows).to_pylist():
        try:
            for one in flips:
                one.chosen(row, slot)
        except UserError as refused:
            error = refused
        else:
            return
    if error is not None:
        raise UserError(f"task {inputs.task} on {model.name}: {error}")
