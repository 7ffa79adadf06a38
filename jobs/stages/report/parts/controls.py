"""Controls of methods: does relevance depend on the model?"""

from __future__ import annotations

from evaluation.report.page import Part
from evaluation.report.sections.controls import PAGE, controls_figure, controls_table, further_tables
from jobs.products.controls import randomisation, rewritten, shapley
from jobs.products.controls.rows import broken
from jobs.stages.report.reported import Reported


def controls_part(report: Reported) -> Part:
    """The results of controls that are done. A control that a planted method passes is reported as broken."""
    results, rows = report.results, report.controls
    nodes = (node for product in (randomisation, rewritten, shapley) for node in product.nodes(report.run))
    lacking = sum(not report.run.ledger.is_done(node.artifact) for node in nodes)
    notes = [f"The control is broken: {line}." for line in broken(rows)]
    notes += [f"{lacking} controls are not done: run `closelook controls`."] if lacking else []
    how = report.why_lacking("Nothing was controlled", ["controls"], "`closelook controls`", "methods and tasks in it")
    tables = [controls_table(rows, results.methods), *further_tables(rows, results.methods)] if rows else []
    figures = controls_figure(rows, results.methods, results.baseline)
    return Part("Random weights", how, figures, tables, " ".join(notes), page=PAGE)
