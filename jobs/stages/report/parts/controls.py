"""Controls of methods: is what they say about the model at all?"""

from __future__ import annotations

from evaluation.report.controls import PAGE, controls_figure, controls_table
from evaluation.report.page import Part
from jobs.products.control_rows import broken
from jobs.products.randomisation import nodes
from jobs.stages.report.reported import Reported


def controls_part(report: Reported) -> Part:
    """The verdicts of the randomisation that is done; a control that misses a planted method is said to be broken."""
    results, rows = report.results, report.controls
    lacking = sum(not report.run.ledger.is_done(node.artifact) for node in nodes(report.run))
    notes = [f"The control is broken: {line}." for line in broken(rows)]
    notes += [f"{lacking} randomisations are not done: run `closelook controls`."] if lacking else []
    how = "Nothing was controlled: set `controls` in the config and run `closelook controls`."
    tables = [controls_table(rows, results.methods)] if rows else []
    figures = controls_figure(rows, results.methods, results.baseline)
    return Part("Random weights", how, figures, tables, " ".join(notes), page=PAGE)
