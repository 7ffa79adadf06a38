"""Faithfulness: deletion and insertion curves, the areas between them, and how both compare with evidence."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from evaluation.report.page import Part
from evaluation.report.results import CellKey
from evaluation.report.sections import faithfulness as tables
from evaluation.report.sections.choices import MethodTrials, choices_table
from evaluation.report.sections.evidence import EvidencePoints, evidence_figure, evidence_table, ranks_table, ways_table
from evaluation.scoring.faithfulness.areas import AREA_COLUMNS, CURVE_COLUMNS
from evaluation.scoring.faithfulness.scores import Trial
from jobs.plan.choices import in_words
from jobs.plan.forwards import forwards
from jobs.plan.node import Plan
from jobs.stages.report.reported import Reported
from jobs.stages.report.results import cell_key_of

PAGE = "faithfulness.html"
_COLUMNS = list(dict.fromkeys([*AREA_COLUMNS, *CURVE_COLUMNS]))


def faithfulness_part(report: Reported) -> Part:
    """Builds the report's section on deletion and insertion curves.

    Methods whose curves are not computed are counted in its note and marked as missing.
    """
    results = report.results
    shown = [curve_set for curve_set in report.drawn if curve_set.areas.variants or curve_set.lacking]
    lacking = {(curve_set.model, curve_set.task, method) for curve_set in shown for method in curve_set.lacking}
    note = f"{len(lacking)} sets of curves are not computed: run `closelook perturb`." if lacking else ""
    made = [tables.overview_table(shown, results), tables.areas_table(shown, results)] if shown else []
    chosen = list(_chosen(report.run.plan))
    made += [choices_table(chosen, results)] if chosen else []
    ways = ways_table(shown, results, report.run.config.report.resamples, report.run.config.seed)
    made += [ways] if ways.rows else []
    figures, pairs = tables.curve_figures(shown, results), [tables.pairs_table(shown, results)] if shown else []
    needs = (
        "words or images. For labels and scores of texts it needs `measures: [areas]`; by default only the shares "
        "below are measured"
    )
    how = report.why_lacking("No curves are computed", ["perturb"], "`closelook perturb`", needs)
    return Part("Faithfulness", how, figures, made, note, page=PAGE, details=pairs)


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
        both = EvidencePoints.of(curve_set, results, cost, config.report.resamples, config.seed)
        held += [] if both is None else [both]
    needs = "evidence in the samples, and scores and curves of the same methods"
    how = report.why_lacking("Nothing has both", ["perturb"], "`closelook evaluate` and `perturb`", needs)
    made = [evidence_table(held, results), ranks_table(held)] if held else []
    return Part("Evidence beside faithfulness", how, evidence_figure(held, results), made, page=PAGE)
