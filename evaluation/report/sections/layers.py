"""Scores of each layer against evidence, as NormXLogit's figures 4, 5 and 25 to 28: maps, tables, and tests."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from closelook.evaluation.report.drawing import Grid, Plot
from closelook.evaluation.report.page import Figure
from closelook.evaluation.report.results import Methods, label, normxlogit_layers, ordered, rank
from closelook.evaluation.report.table import (
    DONE,
    Cell,
    Column,
    Entry,
    Table,
    compared_cell,
    marked_if_best,
)
from closelook.evaluation.scoring.metrics import BY_LAYER, METRICS, shown
from closelook.evaluation.scoring.statistics import Comparison

#: By (task, model): methods compared on the same samples. `of_layer` names the metrics.
Comparisons = Mapping[tuple[str, str], Comparison | None]

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


def layer_table(scores: Sequence[LayerScore], methods: Methods, compared: Comparisons) -> Table:
    """The table of scores: a row for each layer, from the last to the first, a column for each metric of a method."""
    columns = []
    for name in ordered(methods, {score.method for score in scores}):
        columns += [Column(label(methods, name), METRICS[metric].label) for metric in shown(BY_LAYER)]
    return replace(LAYERS, columns=tuple(columns)).filled(_entries(scores, methods, compared))


def _entries(scores: Sequence[LayerScore], methods: Methods, compared: Comparisons) -> Iterator[Entry | str]:
    """The cells of `layer_table`."""
    if any(key[:2] in {(score.task, score.model) for score in scores} for key in normxlogit_layers()):
        yield DOUBTS
    by_layer = sorted(scores, key=lambda score: (score.task, score.model, -score.layer, rank(methods, score.method)))
    for score in by_layer:
        comparison, measure = compared.get((score.task, score.model)), of_layer(score.layer, score.metric)
        paper = normxlogit_layers().get((score.task, score.model, score.method, str(score.layer), score.metric))
        metric, cell = METRICS[score.metric], compared_cell(comparison, score.method, measure)
        if cell.value is None:
            cell = Cell(score.value, DONE, score.n)
        cell = replace(cell, reference=paper)
        cell = marked_if_best(cell, comparison, score.method, measure, metric.higher_is_better)
        column = Column(label(methods, score.method), metric.label)
        yield Entry(score.task, (score.model, str(score.layer)), column, cell)


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
