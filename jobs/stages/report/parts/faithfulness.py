"""Faithfulness: curves and their areas, evidence beside them, removed shares, and the search among composites."""

from __future__ import annotations

from collections.abc import Iterator

from closelook.evaluation.report.page import Part
from closelook.evaluation.report.results import CellKey, Methods
from closelook.evaluation.report.sections import faithfulness as tables
from closelook.evaluation.report.sections import shares as removed
from closelook.evaluation.report.sections.choices import MethodTrials, Search, best_table, choices_table, search_figures
from closelook.evaluation.report.sections.evidence import (
    EvidencePoints,
    evidence_figure,
    evidence_table,
    ranks_table,
    ways_table,
)
from closelook.evaluation.report.sections.shares import ShareSet
from closelook.evaluation.scoring.faithfulness.flips import AREAS, TARGET_LOGIT
from closelook.evaluation.scoring.faithfulness.scores import Trial
from closelook.evaluation.scoring.faithfulness.shares import SHARE_COLUMNS, shares_of
from closelook.jobs.config import configured
from closelook.jobs.config.models import KEY
from closelook.jobs.plan.cells import forwards
from closelook.jobs.plan.choices import in_words
from closelook.jobs.plan.node import Choice, Plan
from closelook.jobs.products import curves
from closelook.jobs.stages.report.reported import Reported
from closelook.jobs.stages.report.results import cell_key_of
from closelook.lrp_core.rules.composite import Spec

PAGE = "faithfulness.html"


def faithfulness_part(report: Reported) -> Part:
    """Deletion and insertion curves, their areas, and the options that were chosen by them."""
    results, sets = report.results, report.drawn
    made = [tables.overview_table(sets, results), tables.areas_table(sets, results)] if sets else []
    made.append(choices_table(list(_chosen(report.run.plan)), results))
    made.append(ways_table(sets, results, report.run.config.resampling))
    figures = tables.curve_figures(sets, results)
    return report.part("Faithfulness", PAGE, curves.nodes(report.run), figures=figures, tables=made)


def _chosen(plan: Plan) -> Iterator[MethodTrials]:
    """Yield the trials of the choices that are made."""
    inputs = {model.resolved.config.name: model.inputs for model in plan.models}
    for choice in (choice for model in plan.models for choice in model.choices):
        if choice.record is None:
            continue
        at, trials = choice.artifact, {}
        for options, trial in zip(choice.options, choice.record["trials"], strict=True):
            trials[in_words(options)] = Trial(trial["delta_area"], trial["n"], trial["left_out"])
        left = len(inputs[at.model][at.task].table) - len(choice.rows)
        setting = (at.model, at.task, at.dtype, choice.flips.way)
        yield MethodTrials(*setting, at.method, trials, choice.record["chosen"], left)


def evidence_part(report: Reported) -> Part:
    """Methods that have scores against evidence and curves."""
    config, plan, results = report.run.config, report.run.plan, report.results
    known, options = configured(config), {cell_key_of(cell.artifact): cell.chosen for cell in plan.cells()}
    inputs = {(model.name, task): views for model in plan.models for task, views in model.inputs.items()}
    held = []
    for curve_set in report.drawn:
        length = float(inputs[curve_set.model, curve_set.task].lengths.mean())
        cost = {}
        for method in curve_set.areas.variants:
            key = CellKey(curve_set.model, curve_set.task, curve_set.dtype, method)
            cost[method] = forwards(config, known[method].configured(**options.get(key, {})), length)
        points = EvidencePoints.of(curve_set, results, cost, config.resampling)
        held += [] if points is None else [points]
    title, figures, made = "Evidence beside faithfulness", evidence_figure(held, results), []
    if held:
        made = [evidence_table(held, results), ranks_table(held)]
    return report.part(title, PAGE, curves.nodes(report.run), figures=figures, tables=made)


def shares_part(report: Reported) -> Part:
    """The measures of removed shares, for complete curves."""
    results, taken = report.results, list(_taken(report))
    made = [removed.lead_table(taken, results), removed.shares_table(taken, results)] if taken else []
    figures = removed.share_figures(taken, results)
    title = "Faithfulness on labels and scores"
    return report.part(title, PAGE, curves.nodes(report.run), figures=figures, tables=made)


def _taken(report: Reported) -> Iterator[ShareSet]:
    """Yield the measures of each model, task and way of removal."""
    config = report.run.config
    for perturbed in report.perturbed(SHARE_COLUMNS):
        if perturbed.score != TARGET_LOGIT:  # shares follow the target's logit only
            continue
        model, task, dtype, _ = perturbed.cell_key
        clusters = report.results.clusters.get(task, {})
        inputs = perturbed.model.inputs[task].table
        gold = dict(zip(inputs["sample_id"].to_pylist(), inputs["score"].to_pylist(), strict=True))
        known = removed.published(task, model, perturbed.model.resolved.config.id)
        for flips in perturbed.flips:
            if flips.measure != AREAS:
                shares = shares_of(perturbed.tables, gold, flips.way, config.resampling, clusters)
                setting = (model, task, dtype, flips.way)
                yield ShareSet(*setting, shares, noise=perturbed.noise, published=known)


def composites_part(report: Reported) -> Part:
    """The trials of every method whose composite the config left open."""
    choices = (choice for model in report.run.plan.models for choice in model.choices)
    searches = [search for choice in choices for search in _searched(choice, report.methods)]
    figures, tables = search_figures(searches, report.methods), [best_table(searches, report.methods)]
    return report.part("Rules by groups of layers", PAGE, figures=figures, tables=tables)


def _searched(choice: Choice, methods: Methods) -> Iterator[Search]:
    """Yield the search among the composites of a choice, if it is made and has any."""
    if choice.record is None:
        return
    at = choice.artifact
    for option in methods[at.method].options:
        if option.named_in == KEY and option.name in choice.options[0]:
            specs = [Spec.of(options[option.name]) for options in choice.options]
            deltas = [trial["delta_area"] if trial["n"] else None for trial in choice.record["trials"]]
            trials = [(spec, delta) for spec, delta in zip(specs, deltas, strict=True) if delta is not None]
            yield Search(at.model, at.task, at.dtype, at.method, trials, specs[choice.record["chosen"]])
