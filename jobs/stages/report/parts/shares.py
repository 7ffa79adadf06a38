"""Shares of tokens taken away of what classifiers and regressors read: AOPC, sufficiency, accuracy, correlation."""

from __future__ import annotations

from collections.abc import Iterator

from evaluation.report import shares as tables
from evaluation.report.page import Part
from evaluation.report.shares import Taken
from evaluation.scoring.flips import AREAS, TARGET_LOGIT
from evaluation.scoring.shares import SHARE_COLUMNS, shares_of
from jobs.stages.report.curves import perturbed
from jobs.stages.report.parts.faithfulness import PAGE
from jobs.stages.report.reported import Reported


def shares_part(report: Reported) -> Part:
    """The wanted shares that are drawn."""
    results = report.results
    taken = list(_taken(report))
    made = [tables.lead_table(taken, results), tables.shares_table(taken, results)] if taken else []
    figures = tables.share_figures(taken, results)
    return Part("Faithfulness on labels and scores", tables.NOT_DRAWN, figures, made, page=PAGE)


def _taken(report: Reported) -> Iterator[Taken]:
    config = report.run.config
    for one in perturbed(report.run, report.results, SHARE_COLUMNS):
        if one.score != TARGET_LOGIT:  # which all shares follow
            continue
        model, task, dtype, _ = one.place
        clusters = report.results.clusters.get(task, {})
        inputs = one.model.inputs[task].table
        gold = dict(zip(inputs["sample_id"].to_pylist(), inputs["score"].to_pylist(), strict=True))
        known = tables.published(task, model, one.model.resolved.config.id)
        for flips in one.cells[0].flips:
            if flips.measure != AREAS:
                shares = shares_of(one.tables, gold, flips.way, config.report.resamples, config.seed, clusters)
                yield Taken(model, task, dtype, flips.way, shares, one.lacking, one.noise, known)
