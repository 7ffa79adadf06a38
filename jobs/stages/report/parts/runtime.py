"""What a pass costs: time and memory against length, and what the benchmark of methods by length says of it."""

from __future__ import annotations

from typing import Any

from evaluation.report.costs import cost_table, length_tables, runtime_figures
from evaluation.report.page import Part
from evaluation.report.results import Results
from evaluation.schema import RUNTIME
from evaluation.scoring.runtime import costs
from jobs.bench.storage import measured_by
from jobs.config import RunConfig
from jobs.methods import METHODS
from jobs.plan.cells import Plan
from jobs.store import Ledger


def runtime_part(config: RunConfig, plan: Plan, ledger: Ledger, results: Results) -> Part:
    """The cost of every batch whose times are in the store, and of methods by length where that was measured."""
    store = ledger.store
    rows: list[dict[str, Any]] = []
    for (model, task), dtypes in results.dtypes.items():
        for dtype in dtypes:
            files = store.files(store.runtime(model, task, dtype))
            place = {"model": model, "task": task, "dtype": dtype}
            rows += [row | place for row in store.read(files, RUNTIME).to_pylist()] if files else []
    measured = costs(rows)
    how = "Nothing was timed: run `closelook attribute`."
    tables = [cost_table(measured, results.methods)] if measured else []
    tables += length_tables(measured_by("heads", store), METHODS)
    return Part("Runtime", how, runtime_figures(rows), tables)
