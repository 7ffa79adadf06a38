"""Evidence by layer, as NormXLogit's figures 4, 5 and 25 to 28: maps of layers and methods, tables, and tests."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from evaluation.report.drawing import Grid, Plot
from evaluation.report.page import Figure
from evaluation.report.papers import normxlogit_layers
from evaluation.report.results import Methods, label, rank
from evaluation.report.table import (
    DONE,
    MISSING,
    UNDEFINED_CELL,
    Cell,
    Column,
    Entry,
    Table,
    difference_cell,
    interval_of,
    of_group,
)
from evaluation.scoring.metrics import BY_LAYER, METRICS, shown
from evaluation.scoring.statistics import TEST, Comparison

Missing = frozenset[tuple[str, str, str]]  # (task, model, method) without scores yet
#: (task, model) -> its methods on the same samples; metrics are named by :func:`of_layer`.
Comparisons = Mapping[tuple[str, str], Comparison]

#: Of the paper's numbers.
DOUBTS = (
    " The paper's text puts NormXLogit ahead in almost all layers; by its own figure 5 ALTI has the higher average "
    "precision in layers 2, 3, 9 and 11, and the norm alone is below random in most."
)
LAYERS = Table(
    "layers",
    "Evidence by layer",
    "What each layer says of the tokens, held against the evidence, in percent with 95 % intervals: the "
    "map of that layer alone, or the head on its states. Layers are counted from the lowest. NormXLogit's numbers "
    "stand beside those of models named as its own, roberta-base and, fine-tuned, roberta-base-blimp5; those of "
    "random relevance, norms, LogAt and NormXLogit are read off its figures 4 and 5.",
    ("model", "layer"),
    paper="NormXLogit",
)
DIFFERENCES = Table(
    "layer_differences",
    "Evidence by layer, methods against the best",
    "Each method minus the best of its layer and metric, which has a dash, on samples that all have. "
    f"* p < 0.05, ** p < 0.01: {TEST} of a layer.",
    ("model", "layer"),
)


@dataclass(frozen=True)
class LayerScore:
    """One metric of what one layer of a model says, under one method; None without correctly predicted samples."""

    model: str
    task: str
    method: str
    layer: int  # from 1
    metric: str
    value: float | None
    n: int


def of_layer(layer: int, metric: str) -> str:
    """The name that a layer's metric has in a comparison."""
    return f"{metric} of {layer}"


def layer_table(scores: Sequence[LayerScore], methods: Methods, missing: Missing, compared: Comparisons) -> Table:
    """A layer a row, a metric of a method a column."""
    doubted = any(key[:2] in {(score.task, score.model) for score in scores} for key in normxlogit_layers())
    return LAYERS.filled(_scores(scores, methods, missing, compared), DOUBTS * doubted)


def layer_differences(scores: Sequence[LayerScore], methods: Methods, missing: Missing, compared: Comparisons) -> Table:
    """The difference of each method from the best of its layer and metric, on samples that all have."""
    return DIFFERENCES.filled(_differences(scores, methods, missing, compared))


Place = tuple[str, str, int, str, str]  # task, model, layer, method, metric


def _places(scores: Sequence[LayerScore], methods: Methods, missing: Missing) -> Iterator[tuple[Place, Column]]:
    """Every number of a table, with its column: from the last layer to the first, method by method."""
    names = sorted({s.method for s in scores} | {method for _, _, method in missing}, key=partial(rank, methods))
    for task, model, layer in sorted({(s.task, s.model, s.layer) for s in scores}, key=lambda key: (*key[:2], -key[2])):
        for name in names:
            for metric in shown(BY_LAYER):
                record = METRICS[metric]
                column = Column(label(methods, name), record.label)
                yield (task, model, layer, name, metric), column


def _scores(scores: Sequence[LayerScore], methods: Methods, missing: Missing, compared: Comparisons) -> Iterator[Entry]:
    values = {(s.task, s.model, s.layer, s.method, s.metric): s for s in scores}
    for place, column in _places(scores, methods, missing):
        task, model, layer, name, metric = place
        score = values.get(place)
        cell = _without(missing, task, model, name)
        if score is not None:
            low, high = interval_of(compared.get((task, model)), name, of_layer(layer, metric))
            paper = normxlogit_layers().get((task, model, name, str(layer), metric))
            better = METRICS[metric].higher_is_better
            cell = Cell(score.value, DONE, score.n, low, high, reference=paper)
            cell = of_group(cell, compared.get((task, model)), name, of_layer(layer, metric), better)
        yield Entry(task, (model, str(layer)), column, cell)


def _differences(
    scores: Sequence[LayerScore], methods: Methods, missing: Missing, compared: Comparisons
) -> Iterator[Entry]:
    for (task, model, layer, name, metric), column in _places(scores, methods, missing):
        together, measure = compared.get((task, model)), of_layer(layer, metric)
        cell = _without(missing, task, model, name)
        if together is not None and together.at(name, measure) is not None:
            best = int(np.argmax(together.mean[:, together.metrics.index(measure)]))
            cell = difference_cell(together, name, together.methods[best], measure)
        yield Entry(task, (model, str(layer)), replace(column, signed=True), cell)


def _without(missing: Missing, task: str, model: str, method: str) -> Cell:
    return Cell(state=MISSING) if (task, model, method) in missing else UNDEFINED_CELL


def layer_figures(scores: Sequence[LayerScore], methods: Methods) -> list[Figure]:
    """A picture for each task and model, with a map for each metric: layers from the last to the first, and methods."""
    figures = []
    for task, model in dict.fromkeys((score.task, score.model) for score in scores):
        own = [score for score in scores if (score.task, score.model) == (task, model)]
        names = sorted({score.method for score in own}, key=partial(rank, methods))
        layers = range(max(score.layer for score in own), 0, -1)
        values = {(score.layer, score.method, score.metric): score.value for score in own}
        maps = []
        for metric in shown(BY_LAYER):
            cells = [[values.get((layer, name, metric)) for name in names] for layer in layers]
            numbers = np.array(cells, float)  # None is NaN
            maps.append(
                Grid(METRICS[metric].label, numbers, list(map(str, layers)), [label(methods, n) for n in names])
            )
        caption = (
            f"{task}, {model}: evidence in what each layer says of the tokens, in percent, over "
            f"{max(score.n for score in own)} samples that "
            "the model predicts rightly. All tokens count but the slot of masked models, as in NormXLogit's figures 4 "
            "and 5. The darker, the higher among the cells of a map. The dot product has both of its normalisations: "
            "the paper takes the softmax for logits and norms."
        )
        title = f"Evidence by layer: {task}, {model}"
        plot = Plot(f"layers_{task}_{model}", title, caption, ("method", "layer"))
        figures += plot.figures(maps, methods)
    return figures
