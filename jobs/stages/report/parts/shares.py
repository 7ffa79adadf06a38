"""Shares of tokens taken away of what classifiers and regressors read: AOPC, sufficiency, accuracy, correlation."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from evaluation.report import shares as tables
from evaluation.report.faithfulness_figures import share_figures
from evaluation.report.page import Part
from evaluation.report.results import Place, Results
from evaluation.report.shares import Taken
from evaluation.schema import CURVES
from evaluation.scoring.areas import told
from evaluation.scoring.flips import AREAS
from evaluation.scoring.shares import SHARE_COLUMNS, shares_of
from jobs.config import RunConfig
from jobs.plan.cells import Plan
from jobs.plan.products.curves import PerturbedCell, wanted_cells
from jobs.stages.report.parts.faithfulness import PAGE, is_noise
from jobs.store import Ledger


def shares_part(config: RunConfig, plan: Plan, ledger: Ledger, results: Results) -> Part:
    """The wanted shares that are drawn."""
    tasks = list(results.tasks)
    taken = sorted(_taken(config, plan, ledger, results), key=lambda one: tasks.index(one.task))
    made = [tables.lead_table(taken, results), tables.shares_table(taken, results)] if taken else []
    figures = share_figures(taken, results)
    return Part("Faithfulness on labels and scores", tables.NOT_DRAWN, figures, made, page=PAGE)


def _taken(config: RunConfig, plan: Plan, ledger: Ledger, results: Results) -> Iterator[Taken]:
    if config.perturb is None:
        return
    for model in plan.models:
        cells: dict[str, list[PerturbedCell]] = defaultdict(list)
        for cell in wanted_cells(config, config.perturb, model):
            cells[cell.artifact.task].append(cell)
        for task, own in cells.items():
            ways = [one.way for one in own[0].flips if one.measure != AREAS]
            done = [c.artifact for c in own if ways and ledger.is_done(c.artifact)]
            read = {artifact.method: ledger.read(artifact, CURVES, SHARE_COLUMNS) for artifact in done}
            place = Place(model.name, task, own[0].artifact.dtype, "")
            noise = [
                name
                for name, table in read.items()
                if (variant := told(table)) is not None and is_noise(results, place, name, variant)
            ]
            kept = {name: table for name, table in read.items() if name not in noise}
            inputs = model.inputs[task].table
            gold = dict(zip(inputs["sample_id"].to_pylist(), inputs["score"].to_pylist(), strict=True))
            lacking = [c.artifact.method for c in own if c.artifact.method not in read]
            known = tables.published(task, model.name, model.resolved.config.id)
            for way in ways:
                shares = shares_of(kept, gold, way, config.report.resamples, config.seed)
                yield Taken(model.name, task, way, shares, lacking, noise, known)
