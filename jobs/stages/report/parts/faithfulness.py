"""Faithfulness: curves of perturbed inputs with the areas under them, and every method's evidence against them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from evaluation.report import faithfulness as tables
from evaluation.report.choices import Chosen, choices_table
from evaluation.report.evidence import agreement_table, evidence_figure, evidence_table, points
from evaluation.report.faithfulness import Drawn
from evaluation.report.page import Part
from evaluation.report.results import Place, Results
from evaluation.schema import CURVES
from evaluation.scoring.areas import AREA_COLUMNS, CURVE_COLUMNS, areas_of, mean_curves, told
from evaluation.scoring.faithfulness import Summary, summarise
from evaluation.scoring.metrics import applicable, overlap
from evaluation.scoring.trials import Trial
from jobs.commands.plan_forwards import forwards
from jobs.config import RunConfig
from jobs.plan.cells import ModelPlan, Plan
from jobs.plan.choices import in_words
from jobs.products.curves import CurvesNode, curves_of
from jobs.stages.report.results import place_of, samples_of_variant
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
    figures, pairs = tables.curve_figures(shown, results), [tables.pairs_table(shown, results)] if shown else []
    return Part("Faithfulness", tables.NOT_DRAWN, figures, made, note, page=PAGE, details=pairs)


def _chosen(plan: Plan) -> Iterator[Chosen]:
    """The choices that are made."""
    for choice in (choice for model in plan.models for choice in model.choices):
        if choice.record is None:
            continue
        at, trials = choice.artifact, {}
        for options, trial in zip(choice.options, choice.record["trials"], strict=True):
            trials[in_words(options)] = Trial(trial["delta_area"], trial["n"], trial["left_out"])
        yield Chosen(at.model, at.task, at.dtype, choice.flips.way, at.method, trials, choice.record["chosen"])


def evidence_part(config: RunConfig, plan: Plan, ledger: Ledger, results: Results) -> Part:
    """Methods that have both evidence and curves."""
    options: dict[Place, Mapping[str, Any]] = {place_of(one.artifact): one.chosen for one in plan.cells() if one.chosen}
    lengths: dict[tuple[str, str], float] = {}
    for model in plan.models:
        for task, inputs in model.inputs.items():
            lengths[model.name, task] = float(inputs.lengths.mean()) if len(inputs.lengths) else 0.0
    drawn, each = [], []
    for one in _drawn(config, plan, ledger, results, with_curves=False):
        cost = {}
        for method in one.areas.variants:
            place = Place(one.model, one.task, one.dtype, method)
            chosen = {method: options[place]} if place in options else {}
            cost[method] = forwards(config, [method], lengths[one.model, one.task], chosen)
        own = points(one, results, cost)
        if own:
            drawn.append(one)
            each.append(own)
    how = "It needs scores against evidence and curves of the same methods: run `closelook evaluate` and `perturb`."
    made = [evidence_table(drawn, each, results), agreement_table(drawn, each)] if drawn else []
    return Part("Evidence against faithfulness", how, evidence_figure(drawn, each, results), made, page=PAGE)


@dataclass(frozen=True)
class Perturbed:
    """The complete curves of a model on a task, by method; those that follow nothing but rounding apart."""

    model: ModelPlan
    place: Place  # without a method
    cells: Sequence[CurvesNode]  # that are wanted
    tables: Mapping[str, pa.Table]
    noise: Sequence[str]
    lacking: Sequence[str]


def perturbed(
    config: RunConfig, plan: Plan, ledger: Ledger, results: Results, columns: list[str]
) -> Iterator[Perturbed]:
    """Curves of every model by task, in the order of tasks, with these columns."""
    for task in results.tasks:
        for model in plan.models:
            wanted = [] if config.perturb is None else curves_of(config, config.perturb, model)
            cells = [cell for cell in wanted if cell.artifact.task == task]
            if not cells:
                continue
            place = place_of(cells[0].artifact)._replace(method="")
            tables, noise, lacking = {}, [], []
            for artifact in (cell.artifact for cell in cells):
                if not ledger.is_done(artifact):
                    lacking.append(artifact.method)
                    continue
                table = ledger.read(artifact, CURVES, columns)
                variant = told(table)
                changes = {} if variant is None else {"explanation": variant[0], "embedding": variant[1]}
                if changes and results.is_noise(place._replace(method=artifact.method), **changes):
                    noise.append(artifact.method)
                else:
                    tables[artifact.method] = table
            yield Perturbed(model, place, cells, tables, noise, lacking)


def _drawn(
    config: RunConfig, plan: Plan, ledger: Ledger, results: Results, *, with_curves: bool = True
) -> Iterator[Drawn]:
    """Areas and mean curves by task, model and perturbation."""
    drawn_with = config.report.resamples, config.seed
    for one in perturbed(config, plan, ledger, results, _COLUMNS):
        model, task, dtype, _ = one.place
        lacking = list(one.lacking)
        for artifact in (choice.artifact for choice in one.model.choices if choice.chosen is None):
            wanted = config.perturb is not None and config.perturb.takes(task=task, method=artifact.method)
            if wanted and (artifact.task, artifact.dtype) == (task, dtype):
                lacking.append(artifact.method)
        ways = one.cells[0].ways
        overlaps = _overlaps(config, ledger, results, one) if ways else {}
        for way in ways:
            areas, curves = areas_of(one.tables, way, *drawn_with), {}
            for method, variant in areas.variants.items() if with_curves else ():
                means = mean_curves(one.tables[method], way, variant, *drawn_with)
                if means:
                    curves[method] = means
            published = one.model.resolved.config.id.rpartition("/")[2]
            bases = {name: record.base for name, record in results.methods.items()}
            setting = (model, task, dtype, way)
            yield Drawn(*setting, areas, curves, lacking, one.noise, overlaps, published, bases)


def _overlaps(config: RunConfig, ledger: Ledger, results: Results, one: Perturbed) -> dict[str, Summary]:
    """The overlap with evidence, of each method that is scored against it, of the variant that the curves follow."""
    metric, overlaps = overlap(), {}
    if metric not in applicable(results.tasks[one.place.task]):
        return {}
    for method, table in one.tables.items():
        place, followed = one.place._replace(method=method), told(table)
        if place in results.defaults and followed is not None:
            variant = results.defaults[place]._replace(explanation=followed[0], embedding=followed[1])
            samples = samples_of_variant(ledger.store, results, place, variant)
            values = samples.filter(samples["correct"])[metric].to_numpy()
            overlaps[method] = summarise(values, config.report.resamples, config.seed)
    return overlaps
