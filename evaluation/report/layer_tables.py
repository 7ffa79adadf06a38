"""Which layers know the evidence, in numbers: with intervals, NormXLogit's beside them, and paired tests of methods."""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path

from evaluation.report.layer_maps import LayerScore
from evaluation.report.results import Methods, label, rank
from evaluation.report.table import DONE, MISSING, UNDEFINED, Cell, Column, Row, Table, mark
from evaluation.scoring.metrics import BY_LAYER, METRICS, shown
from evaluation.scoring.statistics import TEST, Comparison

_DIGITS = 1

Missing = frozenset[tuple[str, str, str]]  # (task, model, method) without scores yet
#: (task, model) -> its methods on the same samples; metrics are named by :func:`of_layer`.
Comparisons = Mapping[tuple[str, str], Comparison]


#: Of the paper's numbers, which :func:`published` has.
DOUBTS = (
    " The paper's text puts NormXLogit ahead in almost all layers; by its own figure 5 ALTI has the higher average "
    "precision in layers 2, 3, 9 and 11, and the norm alone is below random in most."
)


def of_layer(layer: int, metric: str) -> str:
    """The name that a layer's metric has in a comparison."""
    return f"{metric} of {layer}"


@cache
def published() -> Mapping[tuple[str, str, str, int, str], float]:
    """NormXLogit's figures 4 and 5: (task, model, method, layer, metric) -> percent; of the pre-trained model, too."""
    with open(Path(__file__).with_name("normxlogit_layers.csv"), encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file))[1:]
    return {(task, model, method, int(at), metric): float(value) for task, model, method, at, metric, value in rows}


def layer_table(scores: Sequence[LayerScore], methods: Methods, missing: Missing, compared: Comparisons) -> Table:
    """A layer a row, a metric of a method a column."""
    values = {(s.task, s.model, s.method, s.layer, s.metric): s for s in scores}

    def cells(task: str, model: str, layer: int, metric: str, named: Sequence[str]) -> list[Cell]:
        row = []
        for name in named:
            score = values.get((task, model, name, layer, metric))
            if score is None:
                row.append(Cell(state=_why(missing, task, model, name)))
                continue
            together = compared.get((task, model))
            at = together.at(name, of_layer(layer, metric)) if together else None
            low, high = (float(together.low[at]), float(together.high[at])) if together and at else (None, None)
            paper = published().get((task, model, name, layer, metric))
            row.append(Cell(score.value, DONE, score.n, low, high, reference=paper))
        return mark(row, _DIGITS)

    return Table(
        "layers",
        "Evidence by layer",
        "What each layer says of the tokens, held against the evidence, in percent with 95 % bootstrap intervals: the "
        "map of that layer alone, or the head on its states. Layers are counted from the lowest. NormXLogit's numbers "
        "stand beside those of models named as its own, roberta-base and, fine-tuned, roberta-base-blimp5; those of "
        "random relevance, norms, LogAt and NormXLogit are read off its figures 4 and 5."
        + DOUBTS
        * any(key[:2] in {(score.task, score.model) for score in scores} for key in published()),
        ("model", "layer"),
        _columns(scores, methods, missing),
        _rows(scores, methods, missing, cells),
        paper="NormXLogit",
    )


def layer_differences(scores: Sequence[LayerScore], methods: Methods, missing: Missing, compared: Comparisons) -> Table:
    """How far each method is from the best of its layer and metric, on samples that all have; cells as above."""

    def cells(task: str, model: str, layer: int, metric: str, named: Sequence[str]) -> list[Cell]:
        together = compared.get((task, model))
        indices = {name: together.at(name, of_layer(layer, metric)) for name in named} if together else {}
        known = {name: at for name, at in indices.items() if at is not None}
        if together is None or not known:
            return [Cell(state=_why(missing, task, model, name)) for name in named]
        best = max(known.values(), key=lambda at: together.mean[at])
        row = []
        for name in named:
            at = known.get(name)
            if at is None or at == best:
                row.append(Cell(state=UNDEFINED if at else _why(missing, task, model, name)))
                continue
            pair = (at[0], *best)
            low, high = float(together.difference_low[pair]), float(together.difference_high[pair])
            difference, p = float(together.mean[at] - together.mean[best]), float(together.p[pair])
            row.append(Cell(difference, DONE, together.n, low, high, p))
        return row

    return Table(
        "layer_differences",
        "Evidence by layer, methods against the best",
        "Each method minus the best of its layer and metric, which has a dash, on samples that all have. "
        f"* p < 0.05, ** p < 0.01: {TEST} of a layer.",
        ("model", "layer"),
        _columns(scores, methods, missing, signed=True),
        _rows(scores, methods, missing, cells),
    )


def _named(scores: Sequence[LayerScore], methods: Methods, missing: Missing) -> list[str]:
    return sorted({s.method for s in scores} | {method for _, _, method in missing}, key=partial(rank, methods))


def _columns(
    scores: Sequence[LayerScore], methods: Methods, missing: Missing, signed: bool = False
) -> tuple[Column, ...]:
    return tuple(
        Column(label(methods, name), METRICS[metric].label, digits=_DIGITS, signed=signed)
        for name in _named(scores, methods, missing)
        for metric in shown(BY_LAYER)
    )


def _rows(
    scores: Sequence[LayerScore],
    methods: Methods,
    missing: Missing,
    cells: Callable[[str, str, int, str, Sequence[str]], list[Cell]],
) -> tuple[Row, ...]:
    """Rows from the last layer to the first; `cells` are those of one metric, a method each."""
    named, rows = _named(scores, methods, missing), []
    for task, model, layer in sorted({(s.task, s.model, s.layer) for s in scores}, key=lambda key: (*key[:2], -key[2])):
        by_metric = [cells(task, model, layer, metric, named) for metric in shown(BY_LAYER)]
        rows.append(Row(task, (model, str(layer)), tuple(c for own in zip(*by_metric, strict=True) for c in own)))
    return tuple(rows)


def _why(missing: Missing, task: str, model: str, method: str) -> str:
    return MISSING if (task, model, method) in missing else UNDEFINED
