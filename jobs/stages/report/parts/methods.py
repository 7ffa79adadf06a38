"""Methods beside each other: agreement, unstable rules, controls, and cost."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow.compute as pc

from closelook.evaluation.report.page import Part
from closelook.evaluation.report.results import Methods, Variant
from closelook.evaluation.report.sections.agreement import agreement_figures, agreement_table
from closelook.evaluation.report.sections.controls import PAGE, controls_figure, controls_table, shapley_table
from closelook.evaluation.report.sections.costs import cost_table, costs, length_tables, runtime_figures
from closelook.evaluation.report.sections.extremes import Extremes, extremes_figure, extremes_table
from closelook.evaluation.schema import RELEVANCE
from closelook.evaluation.scoring.agreement import MethodAgreement, agreement_of
from closelook.jobs.bench.storage import measured_by
from closelook.jobs.methods import METHODS
from closelook.jobs.plan.node import Cell, Run
from closelook.jobs.products.controls import randomisation, shapley
from closelook.jobs.products.controls.rows import broken
from closelook.jobs.products.scores import SCORES
from closelook.jobs.stages.report.reported import Reported
from closelook.jobs.stages.report.results import relevance_artifacts, relevance_cells, shown_cell_keys
from closelook.jobs.store import Artifact, Ledger

SAMPLES = 30  # so many samples of a model and task are compared
Maps = dict[str, dict[str, np.ndarray]]  # relevance [T] by method and sample id
_COLUMNS = ["sample_id", "explanation", "embedding", "relevance", "explained", "residual"]


def agreement_part(report: Reported) -> Part:
    """The agreement of methods' default variants, for each model and task with at least two methods."""
    results, artifacts = report.results, relevance_artifacts(report.run.plan)
    cells: dict[tuple[str, str], dict[str, tuple[Artifact, Variant]]] = defaultdict(dict)
    for cell_key in shown_cell_keys(results):
        if results.noise(cell_key) is None:
            variant = results.defaults[cell_key]
            cells[cell_key.model, cell_key.task][cell_key.method] = artifacts[cell_key], variant
    agreements: dict[tuple[str, str], MethodAgreement] = {}
    for key, of_methods in cells.items():
        agreement = agreement_of(*_of_the_same(report.ledger, of_methods))
        if agreement is not None:
            agreements[key] = agreement
    details = [agreement_table(agreements, results.methods)]
    figures = agreement_figures(agreements, results.methods)
    return report.part("Agreement", PAGE, SCORES.nodes(report.run), figures=figures, details=details)


def _of_the_same(ledger: Ledger, of_methods: Mapping[str, tuple[Artifact, Variant]]) -> tuple[Maps, list[str]]:
    """(relevance [T] by method and sample id, ids of the first SAMPLES samples that all methods have)."""
    tables = {}
    for method, (cell, variant) in of_methods.items():
        is_variant = (pc.field("explanation") == variant.explanation) & (pc.field("embedding") == variant.embedding)
        tables[method] = ledger.read(cell, RELEVANCE, _COLUMNS[:4]).filter(is_variant)
    common = set.intersection(*(set(table["sample_id"].to_pylist()) for table in tables.values()))
    samples = sorted(common)[:SAMPLES]
    chosen = pc.field("sample_id").isin(samples)
    relevance = {}
    for method, table in tables.items():
        rows = table.filter(chosen).to_pylist()
        relevance[method] = {row["sample_id"]: np.array(row["relevance"], np.float64) for row in rows}
    return relevance, samples


def extremes_part(report: Reported) -> Part:
    """Methods with unstable rules beside conserving methods with rules, on the same model, task and precision."""
    methods = report.methods
    extremes = [_extremes(report.ledger, planned) for planned in _compared_with_unstable(report.run, methods)]
    planned = [cell for cell in relevance_cells(report.run.plan) if methods[cell.artifact.method].unstable]
    figures, tables = extremes_figure(extremes, methods), [extremes_table(extremes, methods)]
    return report.part("Unstable rules", "faithfulness.html", planned, figures=figures, tables=tables)


def _compared_with_unstable(run: Run, methods: Methods) -> list[Cell]:
    """The complete cells of all conserving methods with rules, unstable ones included."""
    done = [planned for planned in relevance_cells(run.plan) if run.ledger.is_done(planned.artifact)]
    places = [(done_cell.artifact.model, done_cell.artifact.task, done_cell.artifact.dtype) for done_cell in done]
    unstable = {at for at, done_cell in zip(places, done, strict=True) if methods[done_cell.artifact.method].unstable}
    beside = (done_cell for at, done_cell in zip(places, done, strict=True) if at in unstable)
    conserving = {name for name, method in methods.items() if method.conserves and method.is_ruled}
    return [cell for cell in beside if cell.artifact.method in conserving]


def _extremes(ledger: Ledger, planned: Cell) -> Extremes:
    """The largest relevance and the residual of each sample of a cell, as shares of the explained number."""
    cell, rows = planned.artifact, _explained(ledger, planned)
    unit = np.abs([row["explained"] for row in rows])
    largest = np.array([np.abs(row["relevance"]).max() for row in rows]) / unit
    error = np.abs([np.nan if row["residual"] is None else row["residual"] for row in rows]) / unit
    return Extremes(cell.model, cell.task, cell.dtype, cell.method, largest, error, planned.samples - len(rows))


def _explained(ledger: Ledger, planned: Cell) -> list[dict[str, Any]]:
    """The rows of the cell's first variant whose relevance is finite, and whose explained number is not 0."""
    variant = planned.requests[0].variant
    rows = ledger.read(planned.artifact, RELEVANCE, _COLUMNS).to_pylist()
    rows = [row for row in rows if (row["explanation"], row["embedding"]) == variant and row["explained"]]
    return [row for row in rows if np.isfinite([*row["relevance"], row["residual"] or 0.0]).all()]


def controls_part(report: Reported) -> Part:
    """The results of controls that are done. A control that a planted method passes is reported as broken."""
    results, rows = report.results, report.controls
    nodes = [node for product in (randomisation, shapley) for node in product.nodes(report.run)]
    notes = [f"The control is broken: {line}." for line in broken(rows)]
    tables = [controls_table(rows, results.methods), shapley_table(rows, results.methods)] if rows else []
    figures = controls_figure(rows, results.methods, results.baseline)
    return report.part("Random weights", PAGE, nodes, figures=figures, tables=tables, notes=notes)


def runtime_part(report: Reported) -> Part:
    """The timings of all batches in the store, and the benchmark of methods by length if it was run."""
    tables = [cost_table(costs(report.runtimes), report.methods)]
    tables += length_tables(measured_by("lrp", report.run.store), METHODS)
    return report.part("Runtime", "curves.html", figures=runtime_figures(report.runtimes), tables=tables)
