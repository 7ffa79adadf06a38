"""Head pruning: accuracy as heads go (figures 2 to 5 of Close Look), and the areas under the curves."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from evaluation.report.drawing import Line, Panel, Plot, looks
from evaluation.report.page import Figure
from evaluation.report.results import Methods, label, rank
from evaluation.report.table import DONE, MISSING, UNDEFINED, Cell, Column, Entry, Table
from evaluation.scoring.head_orders import NOT_POOLED, RANDOM, area
from evaluation.tasks import Task

POOLINGS = {"relu_dim": "ReLU dim", "relu_token": "ReLU per token", "none": "no ReLU"}
ORDERS = {"least_first": "least relevant heads first", "most_first": "most relevant heads first"}
MAIN_POOLING = "relu_token"  # of the figure in Close Look's main text
OURS = "Ours"  # what has no number in Close Look
Tasks = Mapping[str, Task]


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


def curves_of(rows: Iterable[Mapping[str, Any]]) -> list[PruningCurve]:
    """`rows` are those of the pruning schema with their `model` and `task`; random orders become one mean curve."""
    runs: dict[tuple[str, str, str, str, str], dict[Any, list[tuple[int, int, float]]]] = {}
    samples = {}
    for row in rows:
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
    "first, lower where the most relevant do. Random is the mean over orders.",
    ("model", "method"),
)


def areas(curves: Sequence[PruningCurve], methods: Methods, lacking: Collection[tuple[str, str, str]] = ()) -> Table:
    """Area under each pruning curve: the mean accuracy over the share of heads removed.

    `lacking` are (task, model, method) whose curves are wanted and not drawn: their cells are missing.
    """
    return AREAS.filled(_areas(curves, methods, lacking))


def _areas(
    curves: Sequence[PruningCurve], methods: Methods, lacking: Collection[tuple[str, str, str]]
) -> Iterator[Entry]:
    measured = {(c.task, c.model, c.method, c.order, c.pooling): float(area(c.accuracy, c.removed)) for c in curves}
    drawn = {(curve.order, curve.pooling) for curve in curves}
    sets = {key[:3] for key in measured}.union(lacking)
    models = dict.fromkeys([*((c.task, c.model) for c in curves), *(own[:2] for own in sorted(lacking))])
    for task, model in models:
        names = sorted((own[2] for own in sets if own[:2] == (task, model)), key=partial(rank, methods))
        for method in names:
            for order in ORDERS:
                for pooling in POOLINGS:
                    if (order, pooling) not in drawn:
                        continue
                    setting = (RANDOM, NOT_POOLED) if method == RANDOM else (order, pooling)
                    value = measured.get((task, model, method, *setting))
                    state = MISSING if (task, model, method) in lacking else UNDEFINED
                    cell = Cell(state=state) if value is None else Cell(value, DONE)
                    column = Column(ORDERS[order], POOLINGS[pooling])
                    yield Entry(task, (model, curve_label(methods, method)), column, cell)
