"""Faithfulness: curves of perturbed inputs with the areas under them, and every method's evidence against them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa

from evaluation.report import faithfulness as tables
from evaluation.report.choices import Chosen, choices_table
from evaluation.report.evidence import agreement_table, evidence_table, points
from evaluation.report.faithfulness import Drawn
from evaluation.report.faithfulness_figures import curve_figures, evidence_figure
from evaluation.report.page import Part
from evaluation.report.results import Place, Results
from evaluation.schema import CURVES
from evaluation.scoring.areas import AREA_COLUMNS, CURVE_COLUMNS, Variant, areas_of, mean_curves, told
from evaluation.scoring.faithfulness import Summary, summarise
from evaluation.scoring.metrics import applicable, overlap
from evaluation.scoring.trials import Trial
from jobs.commands.plan_forwards import forwards
from jobs.config import RunConfig
from jobs.plan.cells import Plan
from jobs.plan.choices import in_words
from jobs.plan.products.curves import PerturbedCell, wanted_cells
from jobs.stages.report.results import samples_of_variant
from jobs.store import Ledger

PAGE = "faithfulness.html"
_COLUMNS = list(dict.fromkeys([*AREA_COLUMNS, *CURVE_COLUMNS]))


def faithfulness_part(config: RunConfig, plan: Plan, ledger: Ledger, results: Results) -> Part:
    """The wanted curves that are drawn; sets that are not are counted and marked missing."""
    shown = [one for one in _drawn(config, plan, ledger, results) if one.areas.variants or one.lacking]
    lacking = {(one.model, one.task, method) for one in shown for method in one.lacking}
    note = f"{len(lacking)} sets of curves are not drawn: run `closelook perturb`." if lacking else ""
    made = [tables.overview_table(shown, results), tables.areas_table(shown, results)] if shown else []
    chosen = list(_chosen(plan))
    made += [choices_table(chosen, results)] if chosen else []
    figures, pairs = curve_figures(shown, results), [tables.pairs_table(shown, results)] if shown else []
    return Part("Faithfulness", tables.NOT_DRAWN, figures, made, note, page=PAGE, details=pairs)


def _chosen(plan: Plan) -> Iterator[Chosen]:
    """The choices that are made."""
    for model in plan.models:
        for choice in model.choices:
            if choice.record is not None:
                at, told = choice.artifact, choice.record["trials"]
                trials = {
                    in_words(options): Trial(one["delta_area"], one["n"], one["left_out"])
                    for options, one in zip(choice.options, told, strict=True)
                }
                yield Chosen(at.model, at.task, at.dtype, at.method, choice.flips.way, trials, choice.record["chosen"])


def evidence_part(config: RunConfig, plan: Plan, ledger: Ledger, results: Results) -> Part:
    """What has both evidence and curves."""
    lengths = {
        (model.name, task): float(inputs.lengths.mean()) if len(inputs.lengths) else 0.0
        for model in plan.models
        for task, inputs in model.inputs.items()
    }
    drawn, each = [], []
    for one in _drawn(config, plan, ledger, results, with_curves=False):
        chosen = _chosen_for(plan, one)
        cost = {name: forwards(config, [name], lengths[one.model, one.task], chosen) for name in one.areas.variants}
        own = points(one, results, cost)
        if own:
            drawn.append(one)
            each.append(own)
    how = "It needs scores against evidence and curves of the same methods: run `closelook evaluate` and `perturb`."
    made = [evidence_table(drawn, each, results), agreement_table(drawn, each)] if drawn else []
    return Part("Evidence against faithfulness", how, evidence_figure(drawn, each, results), made, page=PAGE)


def _chosen_for(plan: Plan, one: Drawn) -> dict[str, Mapping[str, Any]]:
    """The options that a method's curves are of, by method."""
    place = (one.model, one.task, one.dtype)
    return {
        p.cell.method: p.chosen for p in plan.cells() if p.chosen and (p.cell.model, p.cell.task, p.cell.dtype) == place
    }


def _drawn(config: RunConfig, plan: Plan, ledger: Ledger, results: Results, *, with_curves: bool = True) -> list[Drawn]:
    """What is drawn, by task, model and perturbation."""
    tasks = list(results.tasks)
    return sorted(_of_models(config, plan, ledger, results, with_curves), key=lambda one: tasks.index(one.task))


def _of_models(config: RunConfig, plan: Plan, ledger: Ledger, results: Results, with_curves: bool) -> Iterator[Drawn]:
    resamples, seed = config.report.resamples, config.seed
    if config.perturb is None:
        return
    for model in plan.models:
        cells: dict[str, list[PerturbedCell]] = defaultdict(list)
        for cell in wanted_cells(config, config.perturb, model):
            cells[cell.artifact.task].append(cell)
        for task, own in cells.items():
            if not own[0].ways:
                continue
            done = {c.artifact.method: _read(ledger, c) for c in own if ledger.is_done(c.artifact)}
            lacking = [c.artifact.method for c in own if c.artifact.method not in done]
            waiting = (c.artifact for c in model.choices if c.chosen is None)
            lacking += [
                a.method
                for a in waiting
                if (a.task, a.dtype) == (task, own[0].artifact.dtype)
                and config.perturb.takes(task=task, method=a.method)
            ]
            place = Place(model.name, task, own[0].artifact.dtype, "")
            variants = {name: variant for name, table in done.items() if (variant := told(table)) is not None}
            noise = [name for name, variant in variants.items() if is_noise(results, place, name, variant)]
            kept = {name: table for name, table in done.items() if name not in noise}
            overlaps = _overlaps(
                config, ledger, results, place, {name: v for name, v in variants.items() if name in kept}
            )
            for way in own[0].ways:
                areas = areas_of(kept, way, resamples, seed)
                curves = {
                    method: mean_curves(kept[method], way, variant, resamples, seed)
                    for method, variant in (areas.variants.items() if with_curves else ())
                }
                yield Drawn(
                    model.name,
                    task,
                    place.dtype,
                    way,
                    areas,
                    {method: drawn_curves for method, drawn_curves in curves.items() if drawn_curves},
                    lacking,
                    noise,
                    overlaps,
                    published=model.resolved.config.id.rpartition("/")[2],
                    bases={name: record.base for name, record in results.methods.items()},
                )


def is_noise(results: Results, place: Place, method: str, variant: Variant) -> bool:
    """Whether the relevance that the curves follow is nothing but rounding."""
    explanation, embedding = variant
    return results.is_noise(place._replace(method=method), explanation=explanation, embedding=embedding)


def _overlaps(
    config: RunConfig, ledger: Ledger, results: Results, place: Place, variants: Mapping[str, Variant]
) -> dict[str, Summary]:
    """The overlap with evidence, of each method that is scored against it, of the variant that the curves follow."""
    metric = overlap()
    if metric not in applicable(results.tasks[place.task]):
        return {}
    overlaps = {}
    for method, (explanation, embedding) in variants.items():
        own = place._replace(method=method)
        if own in results.defaults:
            variant = results.defaults[own]._replace(explanation=explanation, embedding=embedding)
            samples = samples_of_variant(ledger.store, results, own, variant)
            values = samples.filter(samples["correct"])[metric].to_numpy()
            overlaps[method] = summarise(values, config.report.resamples, config.seed)
    return overlaps


def _read(ledger: Ledger, cell: PerturbedCell) -> pa.Table:
    return ledger.read(cell.artifact, CURVES, _COLUMNS)
