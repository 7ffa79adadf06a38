"""Methods beside each other: agreement, unstable rules, one sample by every method, controls, and cost."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow.compute as pc

from closelook.evaluation.report.heatmaps.layout import visible
from closelook.evaluation.report.heatmaps.plotted import sample_figure
from closelook.evaluation.report.heatmaps.tokens import Entry
from closelook.evaluation.report.page import Part
from closelook.evaluation.report.results import Methods, Variant
from closelook.evaluation.report.sections.agreement import agreement_figures, agreement_table
from closelook.evaluation.report.sections.controls import PAGE, controls_figure, controls_table, shapley_tables
from closelook.evaluation.report.sections.costs import cost_table, costs, length_tables, runtime_figures
from closelook.evaluation.report.sections.extremes import Extremes, extremes_figures, extremes_tables
from closelook.evaluation.report.table import Cell as TableCell
from closelook.evaluation.report.table import Column, Table, row_of
from closelook.evaluation.report.table import Entry as TableEntry
from closelook.evaluation.schema import NEURONS, RELEVANCE
from closelook.evaluation.scoring.agreement import MethodAgreement, agreement_of
from closelook.jobs.bench.storage import measured_by
from closelook.jobs.methods import METHODS
from closelook.jobs.plan.node import Cell, Run
from closelook.jobs.products.controls import randomisation, shapley
from closelook.jobs.products.controls.rows import broken
from closelook.jobs.products.scores import SCORES
from closelook.jobs.stages.report.missing import part
from closelook.jobs.stages.report.reported import Reported
from closelook.jobs.stages.report.results import cell_key_of, relevance_artifacts, relevance_cells, shown_cell_keys
from closelook.jobs.stages.report.samples import one_sample
from closelook.jobs.store import Artifact, Ledger
from closelook.lrp_core.records.explained import NONE, TARGET, needs_foil

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
    needs = "two methods of a model with more than rounding error"
    details = [agreement_table(agreements, results.methods)] if agreements else []
    figures = agreement_figures(agreements, results.methods)
    return part(report, "Agreement", SCORES.nodes(report.run), [], needs, PAGE, figures=figures, details=details)


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
    """Builds the report's section that compares methods with unstable rules with conserving methods with rules.

    They are compared on the same model, task and precision.
    """
    ledger, methods = report.ledger, report.methods
    of_neurons = (planned for planned in report.run.plan.cells() if planned.artifact.product == "neurons")
    complete_neurons = [planned for planned in of_neurons if ledger.is_done(planned.artifact)]
    neurons_by_cell = {cell_key_of(planned.artifact): planned for planned in complete_neurons}
    done = _compared_with_unstable(report.run, methods)
    extremes = [_extremes(ledger, planned, neurons_by_cell.get(cell_key_of(planned.artifact))) for planned in done]
    unstable = " or ".join(f"`{name}`" for name, method in METHODS.items() if method.unstable)
    planned = [cell for cell in relevance_cells(report.run.plan) if methods[cell.artifact.method].unstable]
    figures, (table, by_layer) = extremes_figures(extremes, methods), extremes_tables(extremes, methods)
    tables, details = [table] if extremes else [], [by_layer] if by_layer.rows else []
    needs = f"{unstable} in `methods`"
    return part(report, "Unstable rules", planned, [], needs, figures=figures, tables=tables, details=details)


def _compared_with_unstable(run: Run, methods: Methods) -> list[Cell]:
    """The complete cells of all conserving methods with rules, unstable ones included.

    That is, for every model, task and precision in which an unstable method has a complete cell.
    """
    done = [planned for planned in relevance_cells(run.plan) if run.ledger.is_done(planned.artifact)]
    places = [(done_cell.artifact.model, done_cell.artifact.task, done_cell.artifact.dtype) for done_cell in done]
    unstable = {at for at, done_cell in zip(places, done, strict=True) if methods[done_cell.artifact.method].unstable}
    beside = (done_cell for at, done_cell in zip(places, done, strict=True) if at in unstable)
    conserving = {name for name, method in methods.items() if method.conserves and method.is_ruled}
    return [cell for cell in beside if cell.artifact.method in conserving]


def _extremes(ledger: Ledger, planned: Cell, neurons: Cell | None) -> Extremes:
    """The largest relevance and the residual of each sample of a cell, as shares of the explained number.

    `neurons` is the same method's relevance of neurons, from which peaks by layer are read; None if there is none.
    """
    cell, rows = planned.artifact, _explained(ledger, planned)
    unit = np.abs([row["explained"] for row in rows])
    largest = np.array([np.abs(row["relevance"]).max() for row in rows]) / unit
    error = np.abs([np.nan if row["residual"] is None else row["residual"] for row in rows]) / unit
    by_layer = None
    if neurons is not None:
        units = {row["sample_id"]: abs(row["explained"]) for row in rows}
        kept = ledger.read(neurons.artifact, NEURONS, ["sample_id", "explanation", "peaks"]).to_pylist()
        kept = [row for row in kept if row["explanation"] == planned.requests[0].explanation and row["peaks"]]
        peaks = [np.array(row["peaks"]) / units[row["sample_id"]] for row in kept if row["sample_id"] in units]
        by_layer = np.array([layers for layers in peaks if np.isfinite(layers).all()])
    left_out = planned.samples - len(rows)
    return Extremes(cell.model, cell.task, cell.dtype, cell.method, largest, error, left_out, by_layer)


def _explained(ledger: Ledger, planned: Cell) -> list[dict[str, Any]]:
    """The rows of the cell's first variant whose relevance is finite, and whose explained number is not 0."""
    variant = planned.requests[0].variant
    rows = ledger.read(planned.artifact, RELEVANCE, _COLUMNS).to_pylist()
    rows = [row for row in rows if (row["explanation"], row["embedding"]) == variant and row["explained"]]
    return [row for row in rows if np.isfinite([*row["relevance"], row["residual"] or 0.0]).all()]


TITLE = "One sample, every method"


def sample_part(report: Reported) -> Part:
    """One sample explained by every method. Explanations of the target's logit are shown if there are any."""
    nodes, needs = SCORES.nodes(report.run), "a sample that methods explain"
    entry = one_sample(report.run, report.results)
    if entry is None:
        return part(report, TITLE, nodes, [], needs)
    explained = list(dict.fromkeys(row["explanation"] for row in entry["rows"] if row["explanation"] != NONE))
    shown_explanation = TARGET.name if TARGET.name in explained else next(iter(explained), NONE)
    rows = [row for row in entry["rows"] if row["explanation"] in (NONE, shown_explanation)]
    foil = f" rather than {entry['foil']!r}" if shown_explanation != NONE and needs_foil(shown_explanation) else ""
    right = f"{entry['model']} predicts rightly and " if entry["correct"] else ""
    caption = (
        f"Relevance for {entry['target']!r}{foil}. It is sample {entry['sample_id']}, the first by id of those that "
        f"{right}every method explains; others are on the page of samples."
    )
    shown = entry | {"rows": rows}
    drawn = sample_figure(shown, "one_sample", f"{entry['task']}, {entry['model']}.", caption)
    return part(report, TITLE, nodes, [], needs, figures=[drawn], details=[_sample_table(shown)])


def _sample_table(entry: Entry) -> Table:
    """The numbers of the figure of one sample: a row for each method, a column for each token."""
    columns = [Column("", visible(token), str(at), significant=3) for at, token in enumerate(entry["tokens"])]
    frame: list[TableEntry] = []
    for row in entry["rows"]:
        frame += row_of(entry["task"], (entry["model"], row["label"]), columns, map(TableCell, row["values"]))
    caption = "Relevance of every token, in the unit of each method."
    return Table("one_sample", f"{TITLE}: the numbers", caption, ("model", "method")).filled(frame)


def controls_part(report: Reported) -> Part:
    """The results of controls that are done. A control that a planted method passes is reported as broken."""
    results, rows = report.results, report.controls
    nodes = [node for product in (randomisation, shapley) for node in product.nodes(report.run)]
    notes = [f"The control is broken: {line}." for line in broken(rows)]
    tables = [controls_table(rows, results.methods), *shapley_tables(rows, results.methods)] if rows else []
    figures = controls_figure(rows, results.methods, results.baseline)
    keys, needs = ["controls"], "methods and tasks in it"
    return part(report, "Random weights", nodes, keys, needs, PAGE, figures=figures, tables=tables, notes=notes)


def runtime_part(report: Reported) -> Part:
    """The timings of all batches in the store, and the benchmark of methods by length if it was run."""
    measured = costs(report.runtimes)
    planned = relevance_cells(report.run.plan)
    tables = [cost_table(measured, report.methods)] if measured else []
    tables += length_tables(measured_by("lrp", report.run.store), METHODS)
    needs, figures = "passes that were timed", runtime_figures(report.runtimes)
    return part(report, "Runtime", planned, [], needs, "curves.html", figures=figures, tables=tables)
