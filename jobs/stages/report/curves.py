"""Deletion and insertion curves as the report reads them: areas, mean curves, and the same relevance's evidence."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from evaluation.report.results import CellKey, Results
from evaluation.report.sections.faithfulness import CurveSet
from evaluation.schema import CURVES
from evaluation.scoring.faithfulness.areas import (
    AREA_COLUMNS,
    CURVE_COLUMNS,
    JointScores,
    areas_of,
    joint_scores,
    mean_curves,
    of_score,
    scores_of,
    shown_variant,
)
from evaluation.scoring.faithfulness.flips import TARGET_LOGIT
from evaluation.scoring.faithfulness.scores import Summary, summarise
from evaluation.scoring.metrics import METRICS, applicable, lead, overlap
from jobs.plan.node import ModelPlan, Run
from jobs.products.curves import CurvesNode, curves_of
from jobs.stages.report.results import cell_key_of, samples_of_variant

_COLUMNS = list(dict.fromkeys([*AREA_COLUMNS, *CURVE_COLUMNS]))


@dataclass(frozen=True)
class Perturbed:
    """The complete curves of a model on a task, for one score, by method.

    Methods whose relevance is nothing but rounding are listed in `noise` and have no table; `lacking` are methods whose
    curves are not complete.
    """

    model: ModelPlan
    cell_key: CellKey  # with an empty method
    cells: Sequence[CurvesNode]  # all curves that are planned, complete or not
    tables: Mapping[str, pa.Table]
    noise: Sequence[str]
    lacking: Sequence[str]
    score: str = TARGET_LOGIT  # the number that the curves follow


def perturbed(run: Run, results: Results, columns: Sequence[str]) -> Iterator[Perturbed]:
    """Yield the curves of every task, model and score, in the order of tasks, with these `columns`.

    `columns` must have `score`.
    """
    config, ledger = run.config, run.ledger
    for task in results.tasks:
        for model in run.plan.models:
            planned = [] if config.perturb is None else curves_of(config, config.perturb, model)
            cells = [cell for cell in planned if cell.artifact.task == task]
            if not cells:
                continue
            cell_key = cell_key_of(cells[0].artifact)._replace(method="")
            done = [cell.artifact for cell in cells if ledger.is_done(cell.artifact)]
            every = {}
            for artifact in done:
                table = ledger.read(artifact, CURVES, [*columns])
                every[artifact.method] = results.without_tuning(cell_key_of(artifact), table)
            lacking = [cell.artifact.method for cell in cells if cell.artifact.method not in every]
            for score in scores_of(every.values()):
                of_one = {method: of_score(table, score) for method, table in every.items()}
                tables, noise = _without_noise(results, cell_key, of_one)
                yield Perturbed(model, cell_key, cells, tables, noise, lacking, score)


def _without_noise(
    results: Results, cell_key: CellKey, every: Mapping[str, pa.Table]
) -> tuple[dict[str, pa.Table], list[str]]:
    """(tables by method, methods whose relevance is nothing but rounding and which are left out)."""
    tables, noise = {}, []
    for method, table in every.items():
        variant = shown_variant(table)
        changes = {} if variant is None else {"explanation": variant[0], "embedding": variant[1]}
        if changes and results.is_noise(cell_key._replace(method=method), **changes):
            noise.append(method)
        else:
            tables[method] = table
    return tables, noise


def drawn_curves(run: Run, results: Results) -> Iterator[CurveSet]:
    """Yield areas and mean curves by task, model, score and way of removal."""
    config = run.config
    drawn_with = config.report.resamples, config.seed
    for curves_of_task in perturbed(run, results, _COLUMNS):
        model, task, dtype, _ = curves_of_task.cell_key
        lacking, clusters = list(curves_of_task.lacking), results.clusters.get(task, {})
        for artifact in (choice.artifact for choice in curves_of_task.model.choices if choice.chosen is None):
            is_drawn = config.perturb is not None and config.perturb.takes(task=task, method=artifact.method)
            if is_drawn and (artifact.task, artifact.dtype) == (task, dtype):
                lacking.append(artifact.method)
        ways = curves_of_task.cells[0].ways
        overlaps = _overlaps(run, results, curves_of_task) if ways else {}
        for way in ways:
            areas, curves = areas_of(curves_of_task.tables, way, *drawn_with, clusters, results.baselines), {}
            for method, variant in areas.variants.items():
                means = mean_curves(curves_of_task.tables[method], way, variant, *drawn_with, clusters)
                if means:
                    curves[method] = means
            aside = _beside(run, results, curves_of_task, way)
            published = curves_of_task.model.resolved.config.id.rpartition("/")[2]
            bases = {name: record.base for name, record in results.methods.items()}
            told_beside = (overlaps, aside, bases, curves_of_task.score)
            yield CurveSet(
                model,
                task,
                dtype,
                way,
                areas,
                curves,
                *told_beside,
                lacking=lacking,
                noise=curves_of_task.noise,
                published=published,
            )


def _beside(run: Run, results: Results, perturbed_cells: Perturbed, way: str) -> JointScores | None:
    """Evidence and areas of the variants that the curves follow; None if the task has no evidence."""
    record = METRICS[lead()]
    if record.name not in applicable(results.tasks[perturbed_cells.cell_key.task]):
        return None
    evidence = {}
    for method, samples in _followed(run, results, perturbed_cells):
        values = record.scale * samples[record.name].to_numpy()
        evidence[method] = dict(zip(samples["sample_id"].to_pylist(), values.tolist(), strict=True))
    return joint_scores(
        evidence,
        perturbed_cells.tables,
        way,
        results.clusters.get(perturbed_cells.cell_key.task, {}),
        results.baselines,
    )


def _followed(run: Run, results: Results, perturbed_cells: Perturbed) -> Iterator[tuple[str, pa.Table]]:
    """Yield (method, scores) of the variant that the curves follow, for samples that are predicted rightly."""
    for method, table in perturbed_cells.tables.items():
        cell_key, followed = perturbed_cells.cell_key._replace(method=method), shown_variant(table)
        if cell_key in results.defaults and followed is not None:
            variant = results.defaults[cell_key]._replace(explanation=followed[0], embedding=followed[1])
            samples = samples_of_variant(run.store, results, cell_key, variant)
            yield method, samples.filter(samples["correct"])


def _overlaps(run: Run, results: Results, perturbed_cells: Perturbed) -> dict[str, Summary]:
    """The overlap with evidence by method, of the variant that the curves follow; empty where it does not apply."""
    metric, overlaps, drawing = overlap(), {}, (run.config.report.resamples, run.config.seed)
    if metric not in applicable(results.tasks[perturbed_cells.cell_key.task]):
        return {}
    for method, samples in _followed(run, results, perturbed_cells):
        of = results.clusters_of(perturbed_cells.cell_key.task, samples["sample_id"].to_pylist())
        overlaps[method] = summarise(samples[metric].to_numpy(), *drawing, (0, 1), of)
    return overlaps
