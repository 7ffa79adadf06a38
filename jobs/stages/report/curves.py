"""Faithfulness curves of a run as its report reads them: areas, mean curves, and the overlap of the same relevance."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from evaluation.report.faithfulness import Drawn
from evaluation.report.results import Place, Results
from evaluation.schema import CURVES
from evaluation.scoring.areas import (
    AREA_COLUMNS,
    CURVE_COLUMNS,
    Beside,
    areas_of,
    beside,
    mean_curves,
    of_score,
    scores_of,
    told,
)
from evaluation.scoring.faithfulness import Summary, summarise
from evaluation.scoring.flips import TARGET_LOGIT
from evaluation.scoring.metrics import METRICS, applicable, lead, overlap
from jobs.plan.node import ModelPlan, Run
from jobs.products.curves import CurvesNode, curves_of
from jobs.stages.report.results import place_of, samples_of_variant

_COLUMNS = list(dict.fromkeys([*AREA_COLUMNS, *CURVE_COLUMNS]))


@dataclass(frozen=True)
class Perturbed:
    """The complete curves of a model on a task, by method; those that follow nothing but rounding apart."""

    model: ModelPlan
    place: Place  # without a method
    cells: Sequence[CurvesNode]  # that are wanted
    tables: Mapping[str, pa.Table]
    noise: Sequence[str]
    lacking: Sequence[str]
    score: str = TARGET_LOGIT  # the number that the curves follow


def perturbed(run: Run, results: Results, columns: Sequence[str]) -> Iterator[Perturbed]:
    """Curves of every model by task and score, in the order of tasks, with these columns, `score` among them."""
    config, ledger = run.config, run.ledger
    for task in results.tasks:
        for model in run.plan.models:
            wanted = [] if config.perturb is None else curves_of(config, config.perturb, model)
            cells = [cell for cell in wanted if cell.artifact.task == task]
            if not cells:
                continue
            place = place_of(cells[0].artifact)._replace(method="")
            done = [cell.artifact for cell in cells if ledger.is_done(cell.artifact)]
            every = {}
            for artifact in done:
                table = ledger.read(artifact, CURVES, [*columns])
                every[artifact.method] = results.without_tuning(place_of(artifact), table)
            lacking = [cell.artifact.method for cell in cells if cell.artifact.method not in every]
            for score in scores_of(every.values()):
                of_one = {method: of_score(table, score) for method, table in every.items()}
                tables, noise = _without_noise(results, place, of_one)
                yield Perturbed(model, place, cells, tables, noise, lacking, score)


def _without_noise(
    results: Results, place: Place, every: Mapping[str, pa.Table]
) -> tuple[dict[str, pa.Table], list[str]]:
    """The tables by method, and the methods whose relevance is nothing but rounding, which are left out."""
    tables, noise = {}, []
    for method, table in every.items():
        variant = told(table)
        changes = {} if variant is None else {"explanation": variant[0], "embedding": variant[1]}
        if changes and results.is_noise(place._replace(method=method), **changes):
            noise.append(method)
        else:
            tables[method] = table
    return tables, noise


def drawn_curves(run: Run, results: Results) -> Iterator[Drawn]:
    """Areas and mean curves by task, model and perturbation."""
    config = run.config
    drawn_with = config.report.resamples, config.seed
    for one in perturbed(run, results, _COLUMNS):
        model, task, dtype, _ = one.place
        lacking, clusters = list(one.lacking), results.clusters.get(task, {})
        for artifact in (choice.artifact for choice in one.model.choices if choice.chosen is None):
            wanted = config.perturb is not None and config.perturb.takes(task=task, method=artifact.method)
            if wanted and (artifact.task, artifact.dtype) == (task, dtype):
                lacking.append(artifact.method)
        ways = one.cells[0].ways
        overlaps = _overlaps(run, results, one) if ways else {}
        for way in ways:
            areas, curves = areas_of(one.tables, way, *drawn_with, clusters, results.baselines), {}
            for method, variant in areas.variants.items():
                means = mean_curves(one.tables[method], way, variant, *drawn_with, clusters)
                if means:
                    curves[method] = means
            aside = _beside(run, results, one, way)
            published = one.model.resolved.config.id.rpartition("/")[2]
            bases = {name: record.base for name, record in results.methods.items()}
            told_beside = (overlaps, aside, published, bases)
            yield Drawn(model, task, dtype, way, areas, curves, lacking, one.noise, *told_beside, one.score)


def _beside(run: Run, results: Results, one: Perturbed, way: str) -> Beside | None:
    """Evidence and areas of the variants that the curves follow; None where the task has no evidence."""
    record = METRICS[lead()]
    if record.name not in applicable(results.tasks[one.place.task]):
        return None
    evidence = {}
    for method, samples in _followed(run, results, one):
        values = record.scale * samples[record.name].to_numpy()
        evidence[method] = dict(zip(samples["sample_id"].to_pylist(), values.tolist(), strict=True))
    return beside(evidence, one.tables, way, results.clusters.get(one.place.task, {}), results.baselines)


def _followed(run: Run, results: Results, one: Perturbed) -> Iterator[tuple[str, pa.Table]]:
    """Methods with the scores, of correctly predicted samples, of the variant that their curves follow."""
    for method, table in one.tables.items():
        place, followed = one.place._replace(method=method), told(table)
        if place in results.defaults and followed is not None:
            variant = results.defaults[place]._replace(explanation=followed[0], embedding=followed[1])
            samples = samples_of_variant(run.store, results, place, variant)
            yield method, samples.filter(samples["correct"])


def _overlaps(run: Run, results: Results, one: Perturbed) -> dict[str, Summary]:
    """The overlap with evidence, of each method that is scored against it, of the variant that the curves follow."""
    metric, overlaps, drawing = overlap(), {}, (run.config.report.resamples, run.config.seed)
    if metric not in applicable(results.tasks[one.place.task]):
        return {}
    for method, samples in _followed(run, results, one):
        of = results.clusters_of(one.place.task, samples["sample_id"].to_pylist())
        overlaps[method] = summarise(samples[metric].to_numpy(), *drawing, (0, 1), of)
    return overlaps
