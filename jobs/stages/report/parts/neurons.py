"""Parts on neurons: the effect of their ablation, and relevance at layer boundaries."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from evaluation.report.page import Part
from evaluation.report.results import rank
from evaluation.report.sections.neurons import (
    REASONS,
    Ablations,
    Crossing,
    ablation_figure,
    ablation_table,
    crossing_figure,
    crossing_table,
)
from evaluation.schema import KNOCKOUTS, NEURONS
from jobs.products.neurons.knockouts import KnockoutNode, knockouts_of
from jobs.stages.report.reported import Reported
from jobs.stages.report.results import cell_key_of

PAGE = "neurons.html"


def knockouts_part(report: Reported) -> Part:
    """The ablation of each ranking's neurons, on the samples that all rankings of a task have."""
    groups: dict[tuple[str, str], list[KnockoutNode]] = defaultdict(list)
    lacking = []
    config, ledger, methods = report.run.config, report.run.ledger, report.results.methods
    for cell in (cell for model in report.run.plan.models for cell in knockouts_of(config, model, ledger)):
        if ledger.is_done(cell.artifact):
            groups[cell.artifact.task, cell.artifact.model].append(cell)
        else:
            lacking.append((cell.artifact.task, cell.artifact.model, cell.ranking))
    knockouts = [_knockouts(report, cells) for cells in groups.values()]
    value = config.neurons.knockout.value if config.neurons and config.neurons.knockout else "zero"
    drawn = (config.report.resamples, config.seed, value)
    figures = ablation_figure(knockouts, methods, *drawn)
    tables = [ablation_table(knockouts, methods, lacking, *drawn)] if knockouts else []
    stages, needs = "`closelook attribute` and `closelook neurons`", "`neurons.knockout` and methods with neurons"
    how = report.why_lacking("No neuron is ablated", ["neurons"], stages, needs)
    note = f"{len(lacking)} sets of knock-outs are missing: run `closelook neurons`." if lacking else ""
    return Part("Neuron ablation", how, figures, tables, note, page=PAGE)


def _knockouts(report: Reported, cells: list[KnockoutNode]) -> Ablations:
    """The ablations of the rankings of one model and task."""
    results, first, counts = report.results, cells[0], [0]
    drops: dict[str, dict[str, np.ndarray]] = {}
    for cell in sorted(cells, key=lambda cell: (cell.neurons is None, rank(results.methods, cell.ranking))):
        cell_key = cell_key_of(cell.artifact)._replace(method=cell.ranking)
        rows = results.without_tuning(cell_key, report.run.ledger.read(cell.artifact, KNOCKOUTS)).to_pylist()
        drops[cell.ranking] = {row["sample_id"]: np.array(row["explained"]) for row in rows}
        counts = rows[0]["removed"] if rows else counts
    model, task = first.artifact.model, first.artifact.task
    return Ablations.of(model, task, first.explanation, counts[1:], drops, results.clusters.get(task, {}))


def crossing_part(report: Reported) -> Part:
    """The relevance that crosses layer boundaries, for methods whose relevance sums to the explained number."""
    crossings, methods, ledger = [], report.results.methods, report.run.ledger
    for planned in report.run.plan.cells():
        cell = planned.artifact
        if cell.product != "neurons" or not ledger.is_done(cell):
            continue
        explanation = planned.requests[0].explanation
        rows = [row for row in ledger.read(cell, NEURONS).to_pylist() if row["explanation"] == explanation]
        if rows and rows[0]["boundaries"] is not None:
            reasons = [f"kept_by_{reason}" for reason in REASONS if rows[0][f"kept_by_{reason}"] is not None]
            columns = ("boundaries", "layer_relevance", *reasons)
            boundaries, neurons, *by_reason = (np.mean([row[name] for row in rows], 0) for name in columns)
            kept = np.stack(by_reason, -1)
            crossings.append(Crossing(cell.model, cell.task, cell.method, boundaries, kept, neurons))
    needs = "a method that has relevance of neurons and promises a sum"
    how = report.why_lacking("No relevance of neurons is kept", ["neurons"], "`closelook attribute`", needs)
    figures = crossing_figure(crossings, methods)
    details = [crossing_table(crossings, methods)] if crossings else []
    return Part("Conservation by layer", how, figures, page=PAGE, details=details)
