"""The cost of methods: time and memory by length of the text."""

from __future__ import annotations

from evaluation.report.page import Part
from evaluation.report.sections.costs import cost_table, costs, length_tables, runtime_figures
from jobs.bench.storage import measured_by
from jobs.methods import METHODS
from jobs.stages.report.reported import Reported


def runtime_part(report: Reported) -> Part:
    """The timings of all batches in the store, and the benchmark of methods by length if it was run."""
    measured = costs(report.runtimes)
    how = "Nothing was timed: run `closelook attribute`."
    tables = [cost_table(measured, report.results.methods)] if measured else []
    tables += length_tables(measured_by("heads", report.run.store), METHODS)
    return Part("Runtime", how, runtime_figures(report.runtimes), tables)
