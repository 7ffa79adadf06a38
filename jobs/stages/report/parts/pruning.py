"""Head pruning: accuracy while heads are removed (figures 2 to 5 of Close Look), and areas under the curves."""

from __future__ import annotations

from typing import Any

from evaluation.report.page import Part
from evaluation.report.sections.pruning import areas_of, areas_table, curves_of, pruning_figures
from evaluation.schema import PRUNING
from jobs.config import PruneConfig
from jobs.products.pruning import pruning_of
from jobs.stages.report.reported import Reported


def pruning_part(report: Reported) -> Part:
    """The planned pruning curves; sets that are not complete are counted and marked missing."""
    rows: list[dict[str, Any]] = []
    lacking: set[tuple[str, str, str]] = set()
    results, ledger, prune = report.results, report.run.ledger, report.run.config.prune or PruneConfig()
    models = report.run.plan.models
    planned = [curves for model in models for curves in pruning_of(report.run, prune, model)]
    for curves in planned:
        model_task = {"model": curves.heads.model, "task": curves.heads.task}
        if ledger.is_done(curves.artifact):
            files = ledger.files(curves.artifact)
            rows += [row | model_task for row in ledger.store.read(files, PRUNING).to_pylist()] if files else []
        else:
            lacking.add((model_task["task"], model_task["model"], curves.method))
    drawn, config = curves_of(rows), report.run.config
    drawing = (config.report.resamples, config.seed)
    tables = [areas_table(areas_of(rows), results, lacking, *drawing)] if drawn else []
    needs = "relevance of attention heads"
    how = report.why_lacking("No curves are computed", ["prune", "heads"], "`closelook prune`", needs)
    note = f"{len(lacking)} of {len(planned)} sets of curves are missing: run `closelook prune`." if lacking else ""
    return Part("Head pruning", how, pruning_figures(drawn, results.methods, results.tasks), tables, note)
