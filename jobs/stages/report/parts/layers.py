"""Inside the models: evidence by layer, pruned heads, ablated neurons, and relevance at the boundaries of layers."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
import pyarrow.compute as pc

from closelook.evaluation.report.page import Part
from closelook.evaluation.report.results import rank
from closelook.evaluation.report.sections.layers import LayerScore, layer_figures, layer_table, of_layer
from closelook.evaluation.report.sections.neurons import (
    REASONS,
    Ablations,
    Crossing,
    ablation_figure,
    ablation_table,
    crossing_figure,
    crossing_table,
)
from closelook.evaluation.report.sections.pruning import areas_of, areas_table, curves_of, pruning_figures
from closelook.evaluation.schema import KNOCKOUTS, LAYER_SCORES_SAMPLES, NEURONS, PRUNING
from closelook.evaluation.schema import LAYER_SCORES as SCHEMA
from closelook.evaluation.scoring.means import summarise
from closelook.evaluation.scoring.metrics import METRICS
from closelook.evaluation.scoring.samples import VARIANT
from closelook.evaluation.scoring.statistics import Comparison, compare
from closelook.jobs.config import PruneConfig
from closelook.jobs.products.neurons import knockouts
from closelook.jobs.products.neurons.knockouts import KnockoutNode
from closelook.jobs.products.pruning import pruning_of
from closelook.jobs.products.scores import LAYER_SCORES
from closelook.jobs.stages.report.reported import Reported
from closelook.jobs.stages.report.results import cell_key_of, scale_of
from closelook.jobs.store import Artifact
from closelook.lrp_core.records.explained import EXPLAINED, NONE, TARGET

PAGE = "neurons.html"
Values = dict[str, dict[int, dict[str, Any]]]  # metrics by sample id and layer
_SAMPLE = ["explanation", "tokens", "scope", "layer", "sample_id", "correct"]
_Shown = tuple[Artifact, str, str, list[LayerScore]]  # a method's artifact, explanation, scope, scores


def layers_part(report: Reported) -> Part:
    """The scores by layer of cells that are done.

    Of several explanations the target's is shown, and scores within a context if the task has one.
    """
    scores: list[LayerScore] = []
    together: dict[tuple[str, str], list[_Shown]] = defaultdict(list)
    nodes = list(LAYER_SCORES.nodes(report.run))
    for artifact in (node.artifact for node in nodes if node.state(report.ledger) == "done"):
        rows = _means(report, artifact)
        explained = {row["explanation"] for row in rows}
        first = next((name for name in (TARGET.name, *EXPLAINED) if name in explained), NONE)
        scope = "context" if any(row["scope"] == "context" for row in rows) else "full"
        shown = []
        for row in rows:
            if (row["explanation"], row["tokens"], row["scope"]) == (first, "all", scope):
                shown.append(LayerScore(*(row[name] for name in LayerScore._fields)))
        if shown:
            together[artifact.task, artifact.model].append((artifact, first, scope, shown))
        scores += shown
    compared = {key: _compared(report, methods) for key, methods in together.items()}
    details = [layer_table(scores, report.methods, compared)]
    figures = layer_figures(scores, report.methods)
    return report.part("Evidence by layer", "faithfulness.html", nodes, figures=figures, details=details)


def _means(report: Reported, artifact: Artifact) -> list[dict[str, Any]]:
    """The stored mean scores of a cell; if its options were chosen, means over the samples that did not choose them."""
    store, cell_key = report.run.store, cell_key_of(artifact)
    rows = store.read(f"{artifact.folder}/{artifact.shard()}", SCHEMA).to_pylist()
    if cell_key not in report.results.tuned_on:
        return rows
    metrics = {name: METRICS[name] for name in dict.fromkeys(row["metric"] for row in rows) if name in METRICS}
    columns = [*VARIANT, "layer", "sample_id", "correct", *metrics]
    samples = store.read(f"{artifact.folders[1]}/{artifact.shard()}", LAYER_SCORES_SAMPLES, columns)
    samples = report.results.without_tuning(cell_key, samples)
    means = []
    for layer in pc.unique(samples["layer"]).to_pylist():
        of_layer = {"model": cell_key.model, "task": cell_key.task, "method": cell_key.method, "layer": layer}
        summary = summarise(samples.filter(pc.equal(samples["layer"], layer)), metrics)
        means += [row | of_layer for row in summary.to_pylist()]
    return means


def _compared(report: Reported, shown: list[_Shown]) -> Comparison | None:
    """The comparison of methods on a model and task, by layer and metric; None if they share no sample."""
    columns = sorted({(score.layer, score.metric) for _, _, _, cell_scores in shown for score in cell_scores})
    metrics = list(dict.fromkeys(metric for _, metric in columns))
    values = [_values(report, artifact, explained, scope, metrics) for artifact, explained, scope, _ in shown]
    common = sorted(set.intersection(*(set(scores) for scores in values)))
    if not common:
        return None
    stacked = np.empty((len(common), len(values), len(columns)))  # [N, methods, columns]
    for at, scores in enumerate(values):
        for sample, name in enumerate(common):
            stacked[sample, at] = [scores[name][layer][metric] for layer, metric in columns]
    methods = tuple(artifact.method for artifact, _, _, _ in shown)
    names = tuple(of_layer(layer, metric) for layer, metric in columns)
    scale, shares = scale_of(METRICS[metric] for _, metric in columns)
    clusters = report.results.clusters_of(shown[0][0].task, common)
    return compare(stacked, methods, names, report.run.config.resampling.within(clusters), scale, shares)


def _values(report: Reported, artifact: Artifact, explained: str, scope: str, metrics: list[str]) -> Values:
    """Metrics by sample id and layer, of samples that are predicted rightly."""
    path = f"{artifact.folders[1]}/{artifact.shard()}"
    values: Values = defaultdict(dict)
    condition = pc.field("correct")
    for name, value in (("explanation", explained), ("tokens", "all"), ("scope", scope)):
        condition &= pc.field(name) == value
    rows = report.run.store.read(path, LAYER_SCORES_SAMPLES, [*_SAMPLE, *metrics]).filter(condition)
    rows = report.results.without_tuning(cell_key_of(artifact), rows)
    for row in rows.select(["sample_id", "layer", *metrics]).to_pylist():
        values[row["sample_id"]][row["layer"]] = row
    return values


def pruning_part(report: Reported) -> Part:
    """The pruning curves that are complete."""
    rows: list[dict[str, Any]] = []
    results, ledger, config = report.results, report.ledger, report.run.config
    prune = config.prune or PruneConfig()
    planned = [curves for model in report.run.plan.models for curves in pruning_of(report.run, prune, model)]
    for curves in planned:
        if ledger.is_done(curves.artifact):
            model_task = {"model": curves.heads.model, "task": curves.heads.task}
            rows += [row | model_task for row in ledger.read(curves.artifact, PRUNING).to_pylist()]
    tables = [areas_table(areas_of(rows), results, config.resampling)]
    figures = pruning_figures(curves_of(rows), results.methods, results.tasks)
    return report.part("Head pruning", "curves.html", planned, figures=figures, tables=tables)


def knockouts_part(report: Reported) -> Part:
    """The ablation of each ranking's neurons, on the samples that all rankings of a task have."""
    groups: dict[tuple[str, str], list[KnockoutNode]] = defaultdict(list)
    config, ledger = report.run.config, report.ledger
    planned = list(knockouts.nodes(report.run))
    for cell in planned:
        if ledger.is_done(cell.artifact):
            groups[cell.artifact.task, cell.artifact.model].append(cell)
    ablations = [_ablations(report, groups[task_model]) for task_model in sorted(groups, key=lambda key: key[0])]
    figures = ablation_figure(ablations, report.methods, config.resampling)
    tables = [ablation_table(ablations, report.methods, config.resampling)]
    return report.part("Neuron ablation", PAGE, planned, figures=figures, tables=tables)


def _ablations(report: Reported, cells: list[KnockoutNode]) -> Ablations:
    """The ablations of the rankings of one model and task."""
    results, first, counts = report.results, cells[0], [0]
    drops: dict[str, dict[str, np.ndarray]] = {}
    for cell in sorted(cells, key=lambda cell: (cell.neurons is None, rank(results.methods, cell.ranking))):
        cell_key = cell_key_of(cell.artifact)._replace(method=cell.ranking)
        rows = results.without_tuning(cell_key, report.ledger.read(cell.artifact, KNOCKOUTS)).to_pylist()
        drops[cell.ranking] = {row["sample_id"]: np.array(row["explained"]) for row in rows}
        counts = rows[0]["removed"] if rows else counts
    model, task = first.artifact.model, first.artifact.task
    return Ablations.of(model, task, counts[1:], drops, results.clusters.get(task, {}))


def crossing_part(report: Reported) -> Part:
    """The relevance that crosses layer boundaries, for methods whose relevance sums to the explained number."""
    crossings, methods, ledger = [], report.methods, report.ledger
    for planned in report.run.plan.cells():
        cell = planned.artifact
        if cell.product != "neurons" or not ledger.is_done(cell):
            continue
        explanation = planned.requests[0].explanation
        rows = [row for row in ledger.read(cell, NEURONS).to_pylist() if row["explanation"] == explanation]
        if rows and rows[0]["boundaries"] is not None:
            reasons = [f"kept_by_{reason}" for reason in REASONS if rows[0][f"kept_by_{reason}"] is not None]
            columns = ("boundaries", "layer_relevance", *reasons)
            boundaries, neurons, *by_reason = (np.mean([row[name] for row in rows], 0) for name in columns)
            kept = np.stack(by_reason, -1)
            crossings.append(Crossing(cell.model, cell.task, cell.method, boundaries, kept, neurons))
    details = [crossing_table(crossings, methods)]
    return report.part("Conservation by layer", PAGE, figures=crossing_figure(crossings, methods), details=details)
