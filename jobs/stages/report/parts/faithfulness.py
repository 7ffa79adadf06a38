"""Faithfulness: curves and their areas, evidence beside them, removed shares, and the search among composites."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

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
from closelook.jobs.config.models import KEY
from closelook.jobs.plan.choices import in_words
from closelook.jobs.plan.forwards import forwards
from closelook.jobs.plan.node import Choice, Plan
from closelook.jobs.products import curves
from closelook.jobs.stages.report.missing import part
from closelook.jobs.stages.report.reported import Reported
from closelook.jobs.stages.report.results import cell_key_of
from closelook.lrp_core.rules.composite import Spec


def faithfulness_part(report: Reported) -> Part:
    """Builds the report's section on deletion and insertion curves.

    Methods whose curves are not computed are marked as missing.
    """
    results = report.results
    shown = [curve_set for curve_set in report.drawn if curve_set.areas.variants or curve_set.lacking]
    made = [tables.overview_table(shown, results), tables.areas_table(shown, results)] if shown else []
    chosen = list(_chosen(report.run.plan))
    made += [choices_table(chosen, results)] if chosen else []
    ways = ways_table(shown, results, report.run.config.resampling)
    made += [ways] if ways.rows else []
    figures, pairs = tables.curve_figures(shown, results), [tables.pairs_table(shown, results)] if shown else []
    needs = (
        "words or images. For labels and scores of texts it needs `measures: [areas]`; by default only the shares "
        "below are measured"
    )
    nodes = curves.nodes(report.run)
    return part(report, "Faithfulness", nodes, ["perturb"], needs, figures=figures, tables=made, details=pairs)


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
        yield MethodTrials(
            at.model, at.task, at.dtype, choice.flips.way, at.method, trials, choice.record["chosen"], left
        )


def evidence_part(report: Reported) -> Part:
    """Methods that have scores against evidence and curves."""
    config, plan, results = report.run.config, report.run.plan, report.results
    options: dict[CellKey, Mapping[str, Any]] = {
        cell_key_of(curve_set.artifact): curve_set.chosen for curve_set in plan.cells() if curve_set.chosen
    }
    lengths: dict[tuple[str, str], float] = {}
    for model in plan.models:
        for task, inputs in model.inputs.items():
            lengths[model.name, task] = float(inputs.lengths.mean()) if len(inputs.lengths) else 0.0
    held = []
    for curve_set in report.drawn:
        cost = {}
        for method in curve_set.areas.variants:
            cell_key = CellKey(curve_set.model, curve_set.task, curve_set.dtype, method)
            chosen = {method: options[cell_key]} if cell_key in options else {}
            cost[method] = forwards(config, [method], lengths[curve_set.model, curve_set.task], chosen)
        both = EvidencePoints.of(curve_set, results, cost, config.resampling)
        held += [] if both is None else [both]
    needs = "evidence in the samples, and scores and curves of the same methods"
    made = [evidence_table(held, results), ranks_table(held)] if held else []
    title, nodes, figures = "Evidence beside faithfulness", curves.nodes(report.run), evidence_figure(held, results)
    return part(report, title, nodes, ["perturb"], needs, figures=figures, tables=made)


def shares_part(report: Reported) -> Part:
    """The measures of removed shares, for complete curves."""
    results = report.results
    taken = list(_taken(report))
    made = [removed.lead_table(taken, results), removed.shares_table(taken, results)] if taken else []
    figures = removed.share_figures(taken, results)
    title, nodes, needs = "Faithfulness on labels and scores", curves.nodes(report.run), "a task of labels or scores"
    return part(report, title, nodes, ["perturb"], needs, figures=figures, tables=made)


def _taken(report: Reported) -> Iterator[ShareSet]:
    """Yield the measures of each model, task and way of removal."""
    config = report.run.config
    for perturbed_cells in report.perturbed(SHARE_COLUMNS):
        if perturbed_cells.score != TARGET_LOGIT:  # shares follow the target's logit only
            continue
        model, task, dtype, _ = perturbed_cells.cell_key
        clusters = report.results.clusters.get(task, {})
        inputs = perturbed_cells.model.inputs[task].table
        gold = dict(zip(inputs["sample_id"].to_pylist(), inputs["score"].to_pylist(), strict=True))
        known = removed.published(task, model, perturbed_cells.model.resolved.config.id)
        for flips in perturbed_cells.cells[0].flips:
            if flips.measure != AREAS:
                shares = shares_of(perturbed_cells.tables, gold, flips.way, config.resampling, clusters)
                setting = (model, task, dtype, flips.way)
                lacking, noise = perturbed_cells.lacking, perturbed_cells.noise
                yield ShareSet(*setting, shares, lacking=lacking, noise=noise, published=known)


def composites_part(report: Reported) -> Part:
    """The trials of every method whose composite the config left open."""
    methods = report.methods
    plan = report.run.plan
    choices = (choice for model in plan.models for choice in model.choices)
    searches = [search for choice in choices for search in _searched(choice, methods)]
    how = "No composite is left open: give `attnlrp` a list or a grid as its `composite`, and run `closelook select`."
    if plan.undecided:
        how = "Composites are left open, but not chosen: run `closelook select`."
    tables = [best_table(searches, methods)] if searches else []
    return Part("Rules by groups of layers", how, search_figures(searches, methods), tables, page="faithfulness.html")


def _searched(choice: Choice, methods: Methods) -> Iterator[Search]:
    """Yield the search among the composites of a choice, if it is made and has any."""
    if choice.record is None:
        return
    at, trial_records = choice.artifact, choice.record["trials"]
    for option in methods[at.method].options:
        if option.named_in == KEY and option.name in choice.options[0]:
            specs = [Spec.of(options[option.name]) for options in choice.options]
            trials = [
                (spec, trial["delta_area"]) for spec, trial in zip(specs, trial_records, strict=True) if trial["n"]
            ]
            yield Search(at.model, at.task, at.dtype, at.method, trials, specs[choice.record["chosen"]])
