"""Methods whose rules are unstable, beside those that other rules make of the same samples."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from evaluation.report.extremes import Extremes, extremes_figure, extremes_table
from evaluation.report.page import Part
from evaluation.report.results import Results
from evaluation.schema import RELEVANCE
from jobs.config import RunConfig
from jobs.plan.cells import Plan
from jobs.stages.report.results import relevance_cells
from jobs.store import Ledger
from lrp_core.capabilities import RULES

_COLUMNS = ["explanation", "embedding", "relevance", "explained", "residual"]


def extremes_part(config: RunConfig, plan: Plan, ledger: Ledger, results: Results) -> Part:
    """Cells of rules that are done, where some method of the same model, task and precision is unstable."""
    found = list(_found(plan, ledger, results))
    how = "No method with unstable rules is computed: `closelook methods` names them, for comparison."
    tables = [extremes_table(found, results.methods)] if found else []
    return Part("Unstable rules", how, extremes_figure(found, results.methods), tables, page="faithfulness.html")


def _found(plan: Plan, ledger: Ledger, results: Results) -> Iterator[Extremes]:
    done = [planned for planned in relevance_cells(plan) if ledger.is_done(planned.cell)]
    places = [(one.cell.model, one.cell.task, one.cell.dtype) for one in done]
    unstable = {at for at, one in zip(places, done, strict=True) if results.methods[one.cell.method].unstable}
    for place, planned in zip(places, done, strict=True):
        cell, request = planned.cell, planned.requests[0]
        method = results.methods[cell.method]
        if place not in unstable or not method.conserves or RULES not in method.needs:
            continue
        rows = [
            row
            for row in ledger.read(cell, RELEVANCE, _COLUMNS).to_pylist()
            if (row["explanation"], row["embedding"]) == (request.explanation, request.embedding) and row["explained"]
        ]
        unit = np.abs([row["explained"] for row in rows])
        largest = np.array([np.abs(row["relevance"]).max() for row in rows]) / unit
        error = np.abs([np.nan if row["residual"] is None else row["residual"] for row in rows]) / unit
        yield Extremes(*place, cell.method, largest, error, planned.rows - len(rows))
