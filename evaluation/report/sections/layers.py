"""Scores of each layer against evidence, as NormXLogit's figures 4, 5 and 25 to 28: maps, tables, and tests."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from closelook.evaluation.report.drawing import Grid, Plot
from closelook.evaluation.report.page import Figure
from closelook.evaluation.report.results import Methods, label, normxlogit_layers, ordered
from closelook.evaluation.report.table import (
    DONE,
    MISSING,
    UNDEFINED_CELL,
    Cell,
    Column,
    Entry,
    Table,
    compared_cell,
    difference_cell,
    fills,
    marked_if_best,
)
from closelook.evaluation.scoring.metrics import BY_LAYER, METRICS, shown
from closelook.evaluation.scoring.statistics import TEST, Comparison

Missing = frozenset[tuple[str, str, str]]  # (task, model, method) without scores yet
#: By (task, model): methods compared on the same samples. `of_layer` names the metrics.
Comparisons = Mapping[tuple[str, str], Comparison]

#: A note on the paper's numbers.
DOUBTS = (
    " The paper's text puts NormXLogit ahead in almost all layers. By its figure 5, ALTI has the higher average "
    "precision in layers 2, 3, 9 and 11, and the norm alone is below random in most layers."
)


class LayerScore(NamedTuple):
    """The mean of a metric for the relevance of one layer of a model under a method."""

    model: str
    task: str
    method: str
    layer: int  # from 1
    metric: str
    value: float | None  # None without correctly predicted samples
    n: int


def of_layer(layer: int, metric: str) -> str:
    """The name of a layer's metric in a comparison.

    >>> of_layer(3, "ap")
    'ap of 3'
    """
    return f"{metric} of {layer}"


Key = tuple[str, str, int, str, str]  # task, model, layer, method, metric


def _keys(scores: Sequence[LayerScore], methods: Methods, missing: Missing) -> Iterator[tuple[Key, Column]]:
    """The keys of all numbers of a table, with their columns: from the last layer to the first, method by method."""
    names = ordered(methods, {s.method for s in scores} | {method for _, _, method in missing})
    layers = {(score.task, score.model, score.layer) for score in scores}
    for task, model, layer in sorted(layers, key=lambda key: (*key[:2], -key[2])):
        for name in names:
            for metric in shown(BY_LAYER):
                record = METRICS[metric]
                column = Column(label(methods, name), record.label)
                yield (task, model, layer, name, metric), column


LAYERS = Table(
    "layers",
    "Evidence by layer",
    "The relevance that each layer gives to the tokens, scored against the evidence, in percent with 95 % "
    "intervals, over the samples that all methods have: the map of that layer alone, or the output head applied to "
    "its states. Layers are counted from the lowest. The paper's numbers are shown for models with the names of its "
    "models, roberta-base and, fine-tuned, roberta-base-blimp5; those of random relevance, norms, LogAt and "
    "NormXLogit are read off its figures 4 and 5.",
    ("model", "layer"),
    paper="NormXLogit",
)


@fills(LAYERS)
def layer_table(
    scores: Sequence[LayerScore], methods: Methods, missing: Missing, compared: Comparisons
) -> Iterator[Entry | str]:
    """The table of scores: a row for each layer, a column for each metric of a method."""
    values = {(s.task, s.model, s.layer, s.method, s.metric): s for s in scores}
    if any(key[:2] in {(score.task, score.model) for score in scores} for key in normxlogit_layers()):
        yield DOUBTS
    for key, column in _keys(scores, methods, missing):
        task, model, layer, name, metric = key
        score, comparison, measure = values.get(key), compared.get((task, model)), of_layer(layer, metric)
        cell = _empty(missing, task, model, name)
        if score is not None:
            paper = normxlogit_layers().get((task, model, name, str(layer), metric))
            compared_mean = compared_cell(comparison, name, measure)
            cell = Cell(score.value, DONE, score.n) if compared_mean.value is None else compared_mean
            cell = replace(cell, reference=paper)
            cell = marked_if_best(cell, comparison, name, measure, METRICS[metric].higher_is_better)
        yield Entry(task, (model, str(layer)), column, cell)


DIFFERENCES = Table(
    "layer_differences",
    "Evidence by layer, methods against the best",
    "Each method minus the best method of the layer and metric, which has a dash, on the samples that all methods "
    f"have. * p < 0.05, ** p < 0.01: {TEST}; each layer is a family of its own.",
    ("model", "layer"),
)


@fills(DIFFERENCES)
def layer_differences(
    scores: Sequence[LayerScore], methods: Methods, missing: Missing, compared: Comparisons
) -> Iterator[Entry]:
    """The table of each method's difference from the best of its layer and metric, on samples that all have."""
    for (task, model, layer, name, metric), column in _keys(scores, methods, missing):
        comparison, measure = compared.get((task, model)), of_layer(layer, metric)
        cell = _empty(missing, task, model, name)
        if comparison is not None and comparison.at(name, measure) is not None:
            best = int(np.argmax(comparison.mean[:, comparison.metrics.index(measure)]))
            cell = difference_cell(comparison, name, comparison.methods[best], measure)
        yield Entry(task, (model, str(layer)), replace(column, signed=True), cell)


def _empty(missing: Missing, task: str, model: str, method: str) -> Cell:
    """A cell without a number: missing if the method has no scores yet, else undefined."""
    return Cell(state=MISSING) if (task, model, method) in missing else UNDEFINED_CELL


def layer_figures(scores: Sequence[LayerScore], methods: Methods) -> list[Figure]:
    """A figure for each task and model, with a map for each metric: layers, from the last to the first, by methods."""
    by_model: dict[tuple[str, str], list[LayerScore]] = {}
    for score in scores:
        by_model.setdefault((score.task, score.model), []).append(score)
    figures = []
    for (task, model), of_model in by_model.items():
        names = ordered(methods, {score.method for score in of_model})
        layers = range(max(score.layer for score in of_model), 0, -1)
        values = {(score.layer, score.method, score.metric): score.value for score in of_model}
        rows, columns = list(map(str, layers)), [label(methods, name) for name in names]
        maps = []
        for metric in shown(BY_LAYER):
            cells = [[values.get((layer, name, metric)) for name in names] for layer in layers]
            numbers = np.array(cells, float)  # None is NaN
            maps.append(Grid(METRICS[metric].label, numbers, rows, columns))
        caption = (
            f"{task}, {model}: the relevance that each layer gives to the tokens, scored against the evidence, in "
            f"percent, over {max(score.n for score in of_model)} correctly predicted samples. All tokens count except "
            "the slot of masked models, as in NormXLogit's figures 4 and 5. Darker cells are higher within a map. The "
            "dot product is shown with both normalisations; the paper takes the softmax for logits and norms."
        )
        title = f"Evidence by layer: {task}, {model}"
        plot = Plot(f"layers_{task}_{model}", title, caption, ("method", "layer"))
        figures += plot.figures(maps, methods)
    return figures
