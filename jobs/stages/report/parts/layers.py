"""Relevance layer by layer against evidence (figures 4, 5 and 25 to 28 of NormXLogit)."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
import pyarrow.compute as pc

from evaluation.report.page import Part
from evaluation.report.sections.layers import LayerScore, layer_differences, layer_figures, layer_table, of_layer
from evaluation.schema import LAYER_SCORES as SCHEMA
from evaluation.schema import LAYER_SCORES_SAMPLES
from evaluation.scoring.means import summarise
from evaluation.scoring.metrics import METRICS
from evaluation.scoring.samples import VARIANT
from evaluation.scoring.statistics import Comparison, compare
from jobs.products.scores import LAYER_SCORES
from jobs.stages.report.reported import Reported
from jobs.stages.report.results import cell_key_of, scale_of
from jobs.store import Artifact
from lrp_core.records.explained import EXPLAINED, NONE, TARGET

_SCORE = ("model", "task", "method", "layer", "metric", "value", "n")  # the fields of `LayerScore`
Values = dict[str, dict[int, dict[str, Any]]]  # metrics by sample id and layer
_SAMPLE = ["explanation", "tokens", "scope", "layer", "sample_id", "correct"]


def layers_part(report: Reported) -> Part:
    """The scores by layer of cells that are done; the note counts the others.

    Of several explanations the target's is shown, and scores within a context if the task has one.
    """
    scores: list[LayerScore] = []
    lacking: set[tuple[str, str, str]] = set()
    together: dict[tuple[str, str], list[_Shown]] = defaultdict(list)
    ledger, methods = report.run.ledger, report.results.methods
    for node in LAYER_SCORES.nodes(report.run):
        artifact = node.artifact
        if node.state(ledger) != "done":
            lacking.add((artifact.task, artifact.model, artifact.method))
            continue
        rows = _means(report, artifact)
        explained = {row["explanation"] for row in rows}
        first = next((name for name in (TARGET.name, *EXPLAINED) if name in explained), NONE)
        scope = "context" if any(row["scope"] == "context" for row in rows) else "full"
        node_scores = []
        for row in rows:
            if (row["explanation"], row["tokens"], row["scope"]) == (first, "all", scope):
                node_scores.append(LayerScore(*(row[name] for name in _SCORE)))
        scores += node_scores
        if node_scores:
            together[artifact.task, artifact.model].append((artifact, first, scope, node_scores))
    compared = {task_model: _compared(report, shown) for task_model, shown in together.items()}
    known = {task_model: comparison for task_model, comparison in compared.items() if comparison is not None}
    missing_scores, needs = "No layers are kept and scored", "evidence in the samples, and methods with layers"
    how = report.why_lacking(missing_scores, ["layers"], "`closelook attribute` and `evaluate`", needs)
    note = (
        f"{len(lacking)} cells of layers have no scores: run `closelook attribute` and `evaluate`." if lacking else ""
    )
    figures, missing = layer_figures(scores, methods), frozenset(lacking)
    tables = (layer_table, layer_differences) if scores else ()
    details = [table(scores, methods, missing, known) for table in tables]
    return Part("Evidence by layer", how, figures, note=note, page="faithfulness.html", details=details)


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


_Shown = tuple[Artifact, str, str, list[LayerScore]]  # a method's artifact, explanation, scope, scores


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
    run, clusters = report.run, report.results.clusters_of(shown[0][0].task, common)
    return compare(stacked, methods, names, run.config.report.resamples, run.config.seed, scale, shares, clusters)


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
