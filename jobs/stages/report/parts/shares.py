"""Removing shares of tokens from inputs of classifiers and regressors: AOPC, sufficiency, accuracy, correlation."""

from __future__ import annotations

from collections.abc import Iterator

from evaluation.report.page import Part
from evaluation.report.sections import shares as tables
from evaluation.report.sections.shares import ShareSet
from evaluation.scoring.faithfulness.flips import AREAS, TARGET_LOGIT
from evaluation.scoring.faithfulness.shares import SHARE_COLUMNS, shares_of
from jobs.stages.report.curves import perturbed
from jobs.stages.report.parts.faithfulness import PAGE
from jobs.stages.report.reported import Reported


def shares_part(report: Reported) -> Part:
    """The measures of removed shares, for complete curves."""
    results = report.results
    taken = list(_taken(report))
    made = [tables.lead_table(taken, results), tables.shares_table(taken, results)] if taken else []
    figures = tables.share_figures(taken, results)
    lacking, needs = "No shares of tokens are taken away", "a task of labels or scores"
    how = report.why_lacking(lacking, ["perturb"], "`closelook perturb`", needs)
    return Part("Faithfulness on labels and scores", how, figures, made, page=PAGE)


def _taken(report: Reported) -> Iterator[ShareSet]:
    """Yield the measures of each model, task and way of removal."""
    config = report.run.config
    for perturbed_cells in perturbed(report.run, report.results, SHARE_COLUMNS):
        if perturbed_cells.score != TARGET_LOGIT:  # shares follow the target's logit only
            continue
        model, task, dtype, _ = perturbed_cells.cell_key
        clusters = report.results.clusters.get(task, {})
        inputs = perturbed_cells.model.inputs[task].table
        gold = dict(zip(inputs["sample_id"].to_pylist(), inputs["score"].to_pylist(), strict=True))
        known = tables.published(task, model, perturbed_cells.model.resolved.config.id)
        for flips in perturbed_cells.cells[0].flips:
            if flips.measure != AREAS:
                shares = shares_of(
                    perturbed_cells.tables, gold, flips.way, config.report.resamples, config.seed, clusters
                )
                absent, noise = perturbed_cells.lacking, perturbed_cells.noise
                setting = (model, task, dtype, flips.way)
                yield ShareSet(*setting, shares, lacking=absent, noise=noise, published=known)
