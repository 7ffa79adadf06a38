"""Head pruning: accuracy as heads go (figures 2 to 5 of Close Look), and the areas under the curves."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from evaluation.report.drawing import Line, Panel, Plot, looks
from evaluation.report.page import Figure
from evaluation.report.results import Methods, Results, label, rank
from evaluation.report.table import (
    BOLD,
    MISSING,
    UNDEFINED,
    UNSEEN,
    Cell,
    Column,
    Entry,
    Table,
    of_group,
    smallest_told,
)
from evaluation.scoring.faithfulness import summarise
from evaluation.scoring.head_orders import NOT_POOLED, RANDOM
from evaluation.scoring.intervals import numbered
from evaluation.scoring.statistics import Comparison, compare
from evaluation.tasks import Task

POOLINGS = {"relu_dim": "ReLU dim", "relu_token": "ReLU per token", "none": "no ReLU"}
ORDERS = {"least_first": "least relevant heads first", "most_first": "most relevant heads first"}
MAIN_POOLING = "relu_token"  # of the figure in Close Look's main text
OURS = "Ours"  # what has no number in Close Look
AREA = "area"
Tasks = Mapping[str, Task]
Clusters = Mapping[str, str]  # by sample
Setting = tuple[str, str, str]  # method, order, pooling
_Areas = dict[Setting, dict[str, list[float]]]
_RANDOM = (RANDOM, NOT_POOLED)


@dataclass(frozen=True)
class PruningCurve:
    """Accuracy [S] in percent after `removed` [S] heads; `low` and `high` are the extremes of `runs` random orders."""

    model: str
    task: str
    method: str
    pooling: str
    order: str
    removed: np.ndarray
    accuracy: np.ndarray
    low: np.ndarray | None = None
    high: np.ndarray | None = None
    runs: int = 1
    samples: int = 0


@dataclass(frozen=True)
class PrunedAreas:
    """The area under every sample's own curve, in percent, of the methods of a model and task, by what ranks heads."""

    model: str
    task: str
    #: By (method, order, pooling): areas by sample; heads are ranked on all samples, or on the half without it.
    paper: Mapping[Setting, Mapping[str, float]]
    halves: Mapping[Setting, Mapping[str, float]]

    def compared(self, order: str, pooling: str, resamples: int, seed: int, clusters: Clusters) -> Comparison | None:
        """Methods by the areas of halves, on the samples that all have; random orders among them."""
        own = {key[0]: areas for key, areas in self.halves.items() if key[1:] in ((order, pooling), _RANDOM)}
        if not own:
            return None
        common = sorted(set.intersection(*map(set, own.values())))
        values = np.array([[areas[name] for areas in own.values()] for name in common]).reshape(-1, len(own), 1)
        drawing = (resamples, seed, 1.0, False)
        return compare(values, tuple(own), (AREA,), *drawing, numbered(clusters, common))


def areas_of(rows: Iterable[Mapping[str, Any]]) -> list[PrunedAreas]:
    """From rows as of `curves_of`. A sample's area under random orders is the mean over them."""
    every: dict[tuple[str, str], tuple[_Areas, _Areas]] = {}
    for row in (row for row in rows if row["samples"] is not None):
        paper, halves = every.setdefault((row["task"], row["model"]), (defaultdict(_lists), defaultdict(_lists)))
        sides = [halves] if row["half"] is not None else [paper]
        if row["order"] == RANDOM:
            sides = [paper, halves]
        for side in sides:
            own = side[row["method"], row["order"], row["pooling"]]
            for sample, value in zip(row["samples"], row["areas"], strict=True):
                own[sample].append(100 * value)
    return [PrunedAreas(model, task, *map(_means, sides)) for (task, model), sides in every.items()]


def _lists() -> dict[str, list[float]]:
    return defaultdict(list)


def _means(side: _Areas) -> dict[Setting, dict[str, float]]:
    return {key: {sample: float(np.mean(values)) for sample, values in own.items()} for key, own in side.items()}


def curves_of(rows: Iterable[Mapping[str, Any]]) -> list[PruningCurve]:
    """`rows` are those of the pruning schema with their `model` and `task`; random orders become one mean curve.

    Curves whose heads are ranked on half of the samples are left out.
    """
    runs: dict[tuple[str, str, str, str, str], dict[Any, list[tuple[int, int, float]]]] = {}
    samples = {}
    for row in (row for row in rows if row["half"] is None):
        key = (row["model"], row["task"], row["method"], row["pooling"], row["order"])
        point = (row["step"], len(row["pruned_heads"]), 100 * row["accuracy"])
        runs.setdefault(key, {}).setdefault(row["seed"], []).append(point)
        samples[key] = row["n"]
    curves = []
    for key, seeds in runs.items():
        paths = [np.array(sorted(points)) for points in seeds.values()]  # [S, 3] each
        removed = np.cumsum(paths[0][:, 1])
        accuracy = np.stack([path[:, 2] for path in paths])  # [seeds, S]
        low, high = (accuracy.min(axis=0), accuracy.max(axis=0)) if len(paths) > 1 else (None, None)
        curves.append(PruningCurve(*key, removed, accuracy.mean(axis=0), low, high, len(paths), samples[key]))
    return curves


def pruning_figures(curves: Sequence[PruningCurve], methods: Methods, tasks: Tasks) -> list[Figure]:
    """The main text's figure of a task that has one (ReLU per token), a figure a task (every pooling), both numbered as
    in Close Look; then the other order, which is ours.

    The figure of the main text has a panel a model; the others have models down and poolings across.
    """
    known = sorted({curve.task for curve in curves}, key=lambda task: (tasks[task].figure or OURS, task))
    figures: list[Figure] = []
    for task in known:
        number = tasks[task].main_figure
        own = [curve for curve in curves if curve.task == task]
        if number and any((c.pooling, c.order) == (MAIN_POOLING, "least_first") for c in own):
            figures += _pruning_figure(own, methods, "least_first", [MAIN_POOLING], number, main=True)
    for order in ORDERS:
        for task in known:
            own = [curve for curve in curves if curve.task == task]
            drawn = {curve.pooling for curve in own if curve.order == order}
            poolings = [pooling for pooling in POOLINGS if pooling in drawn]
            title = (tasks[task].figure if order == "least_first" else None) or OURS
            if poolings:
                figures += _pruning_figure(own, methods, order, poolings, title)
    return figures


def _pruning_figure(
    curves: Sequence[PruningCurve],
    methods: Methods,
    order: str,
    poolings: Sequence[str],
    number: str,
    main: bool = False,
) -> list[Figure]:
    """A panel for each model and pooling of a task's `curves`; `main` names the figure of the paper's main text."""
    task, models = curves[0].task, list(dict.fromkeys(curve.model for curve in curves))
    ranked = [curve for curve in curves if curve.order == order and curve.pooling in poolings]
    random = [curve for curve in curves if curve.order == RANDOM]
    shown = sorted([*ranked, *random], key=lambda curve: rank(methods, curve.method))
    look = looks((curve.method for curve in ranked), methods, RANDOM)
    width = {"linewidth": 1.4}
    lowest = 10 * math.floor(min(curve.accuracy.min() for curve in shown) / 10)
    panels = []
    for model in models:
        for pooling in poolings:
            own = [c for c in shown if c.model == model and (c.order == RANDOM or c.pooling == pooling)]
            lines = [
                Line(curve_label(methods, c.method), c.removed, c.accuracy, look[c.method] | width, c.low, c.high)
                for c in own
            ]
            title = model if main else f"{model} · {POOLINGS[pooling]}"
            panels.append(Panel(title, lines, {"ylim": (lowest - 2, 102)}))
    better = "higher" if order == "least_first" else "lower"
    caption = (
        f"Accuracy on {span(curve.samples for curve in shown)} samples as attention heads are removed, "
        f"{ORDERS[order]}: the {better} the curve the better."
    )
    if main:
        caption = f"{POOLINGS[poolings[0]]}. {caption}"
    if random:
        runs = span(curve.runs for curve in random)
        caption += f" Random is the mean over {runs} orders, its band their extremes."
    name, title = f"pruning_{task}_{order}{'_main' * main}", f"{number}. Head pruning, {task}"
    axes = ("heads removed", "accuracy, %")
    plot = Plot(name, title, caption, axes, len(models) if main else len(poolings), whole=True)
    return plot.figures(panels, methods)


def span(numbers: Iterable[int]) -> str:
    """One number, or the fewest to the most."""
    known = sorted(set(numbers))
    return f"{known[0]:,}" if len(known) == 1 else f"{known[0]:,} to {known[-1]:,}"


def curve_label(methods: Methods, method: str) -> str:
    return "Random" if method == RANDOM else label(methods, method)


AREAS = Table(
    "pruning_area",
    "Area under the pruning curves",
    "Mean accuracy over the share of heads removed, percent: higher is better where the least relevant heads go "
    "first, lower where the most relevant do. As in the paper, heads are ranked and accuracy is measured on the same "
    "samples; beside it (halves) either half of the samples is measured with the heads as the other half ranks them. "
    f"Means over samples with 95 % intervals. {BOLD} Tests are of halves. Random is the mean over orders. " + UNSEEN,
    ("model", "method"),
)


def areas_table(
    areas: Sequence[PrunedAreas],
    results: Results,
    lacking: Collection[tuple[str, str, str]] = (),
    resamples: int = 1000,
    seed: int = 0,
) -> Table:
    """The mean area under the samples' pruning curves: the mean accuracy over the share of heads removed.

    `lacking` are (task, model, method) whose curves are wanted and not drawn: their cells are missing.
    """
    drawn = {key[1:] for one in areas for key in one.paper}
    settings = [(order, pooling) for order in ORDERS for pooling in POOLINGS if (order, pooling) in drawn]
    known = {(one.task, one.model): one for one in areas}
    frame: list[Entry] = []
    for task, model in dict.fromkeys([*known, *(own[:2] for own in sorted(lacking))]):
        own = known.get((task, model), PrunedAreas(model, task, {}, {}))
        wanted = {method for *where, method in lacking if where == [task, model]}
        frame += _entries(own, settings, wanted, results, (resamples, seed))
    return AREAS.filled(frame)


def _entries(
    own: PrunedAreas,
    settings: Sequence[tuple[str, str]],
    lacking: Collection[str],
    results: Results,
    drawing: tuple[int, int],
) -> Iterator[Entry]:
    """The cells of a model and task; those of `lacking` methods are missing."""
    clusters = results.clusters.get(own.task, {})
    compared = {setting: own.compared(*setting, *drawing, clusters) for setting in settings}
    methods = {key[0] for key in own.paper}.union(lacking)
    for method in sorted(methods, key=partial(rank, results.methods)):
        absent, row = Cell(state=MISSING if method in lacking else UNDEFINED), curve_label(results.methods, method)
        for order, pooling in settings:
            key = (method, *(_RANDOM if method == RANDOM else (order, pooling)))
            paper, halves = (
                _mean_cell(side[key], clusters, drawing) if key in side else absent for side in (own.paper, own.halves)
            )
            halves = of_group(halves, compared[order, pooling], method, AREA, order == "least_first")
            for side, cell in (("", paper), ("halves", halves)):
                yield Entry(own.task, (own.model, row), Column(ORDERS[order], POOLINGS[pooling], side), cell)
    for (order, pooling), known in compared.items():
        column = Column(ORDERS[order], POOLINGS[pooling], "halves")
        yield from smallest_told(own.task, (own.model,), {AREA: column}, known)


def _mean_cell(areas: Mapping[str, float], clusters: Clusters, drawing: tuple[int, int]) -> Cell:
    summary = summarise(np.array(list(areas.values())), *drawing, (0, 100), numbered(clusters, list(areas)))
    low, high = (None if math.isnan(end) else end for end in (summary.low, summary.high))
    return Cell(summary.value, n=summary.n, low=low, high=high)
