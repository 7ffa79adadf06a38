"""Methods with unstable rules, compared with methods with other rules on the same samples."""

from __future__ import annotations

from typing import Any

import numpy as np

from evaluation.report.page import Part
from evaluation.report.results import Methods
from evaluation.report.sections.extremes import Extremes, extremes_figures, extremes_tables
from evaluation.schema import NEURONS, RELEVANCE
from jobs.methods import METHODS
from jobs.plan.node import Cell, Run
from jobs.stages.report.reported import Reported
from jobs.stages.report.results import cell_key_of, relevance_cells
from jobs.store import Ledger
from lrp_core.records.capabilities import RULES

_COLUMNS = ["sample_id", "explanation", "embedding", "relevance", "explained", "residual"]


def extremes_part(report: Reported) -> Part:
    """Builds the report's section that compares methods with unstable rules with conserving methods with rules.

    They are compared on the same model, task and precision.
    """
    ledger, methods = report.run.ledger, report.results.methods
    of_neurons = (planned for planned in report.run.plan.cells() if planned.artifact.product == "neurons")
    complete_neurons = [planned for planned in of_neurons if ledger.is_done(planned.artifact)]
    neurons_by_cell = {cell_key_of(planned.artifact): planned for planned in complete_neurons}
    done = _compared_with_unstable(report.run, methods)
    extremes = [_extremes(ledger, planned, neurons_by_cell.get(cell_key_of(planned.artifact))) for planned in done]
    unstable = " or ".join(f"`{name}`" for name, method in METHODS.items() if method.unstable)
    how = f"No method with unstable rules is computed: to compare, add {unstable} to `methods`."
    figures, (table, by_layer) = extremes_figures(extremes, methods), extremes_tables(extremes, methods)
    tables, details = [table] if extremes else [], [by_layer] if by_layer.rows else []
    note = "With `neurons:` in the config it is shown layer by layer, too." if extremes and not details else ""
    return Part("Unstable rules", how, figures, tables, note, page="faithfulness.html", details=details)


def _compared_with_unstable(run: Run, methods: Methods) -> list[Cell]:
    """The complete cells of all conserving methods with rules, unstable ones included.

    That is, for every model, task and precision in which an unstable method has a complete cell.
    """
    done = [planned for planned in relevance_cells(run.plan) if run.ledger.is_done(planned.artifact)]
    places = [(done_cell.artifact.model, done_cell.artifact.task, done_cell.artifact.dtype) for done_cell in done]
    unstable = {at for at, done_cell in zip(places, done, strict=True) if methods[done_cell.artifact.method].unstable}
    beside = (done_cell for at, done_cell in zip(places, done, strict=True) if at in unstable)
    conserving = {name for name, method in methods.items() if method.conserves and RULES in method.needs}
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
        by_layer = np.array(peaks)
    left_out = planned.samples - len(rows)
    return Extremes(cell.model, cell.task, cell.dtype, cell.method, largest, error, left_out, by_layer)


def _explained(ledger: Ledger, planned: Cell) -> list[dict[str, Any]]:
    """The rows of the cell's first variant whose explained number is not 0."""
    request = planned.requests[0]
    variant = (request.explanation, request.embedding)
    rows = ledger.read(planned.artifact, RELEVANCE, _COLUMNS).to_pylist()
    return [row for row in rows if (row["explanation"], row["embedding"]) == variant and row["explained"]]
