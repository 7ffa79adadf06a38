"""Pruning curves (figures 2 to 5 of Close Look), and cost against length."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import matplotlib
import matplotlib.ticker
import numpy as np
from matplotlib.axes import Axes

from evaluation.report.drawing import ACROSS, COLOURS, GREY, figure, spare_colours
from evaluation.report.page import Figure
from evaluation.report.results import Methods, label, rank
from evaluation.scoring.head_orders import NOT_POOLED, RANDOM
from evaluation.scoring.runtime import Cost, Pass, costs
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
    figures = []
    known = sorted({curve.task for curve in curves}, key=lambda task: (tasks[task].figure or OURS, task))
    for task in known:
        shown = {(curve.pooling, curve.order) for curve in curves if curve.task == task}
        if tasks[task].main_figure and (MAIN_POOLING, "least_first") in shown:
            number = tasks[task].main_figure
            figures.append(_pruning_figure(curves, methods, task, "least_first", [MAIN_POOLING], number, main=True))
    for order in ORDERS:
        for task in known:
            own = {curve.pooling for curve in curves if (curve.task, curve.order) == (task, order)}
            poolings = [pooling for pooling in POOLINGS if pooling in own]
            number = tasks[task].figure or OURS if order == "least_first" else OURS
            if poolings:
                figures.append(_pruning_figure(curves, methods, task, order, poolings, number))
    return figures


def _pruning_figure(
    curves: Sequence[PruningCurve],
    methods: Methods,
    task: str,
    order: str,
    poolings: Sequence[str],
    number: str,
    main: bool = False,
) -> Figure:
    """A panel for each model and pooling; `main` names the figure of the paper's main text."""
    models = list(dict.fromkeys(curve.model for curve in curves if curve.task == task))
    shown = [
        c for c in curves if c.task == task and (c.order == RANDOM or (c.order == order and c.pooling in poolings))
    ]
    left = spare_colours((curve.method for curve in shown if curve.order != RANDOM), methods)
    lowest = 10 * math.floor(min(curve.accuracy.min() for curve in shown) / 10)

    def draw(axis: Axes, model: str, pooling: str) -> None:
        own = [
            c
            for c in shown
            if c.model == model and c.pooling in (pooling, NOT_POOLED if c.order == RANDOM else pooling)
        ]
        for curve in sorted(own, key=lambda curve: rank(methods, curve.method)):
            _draw_curve(axis, curve, methods, left)
        axis.set_title(model if main else f"{model} · {POOLINGS[pooling]}", fontsize=9, loc="left")
        axis.set_ylim(lowest - 2, 102)
        axis.xaxis.set_major_locator(matplotlib.ticker.MaxNLocator(6, integer=True))

    panels = [partial(draw, model=model, pooling=pooling) for model in models for pooling in poolings]
    across = min(ACROSS, len(models)) if main else len(poolings)
    better = "higher" if order == "least_first" else "lower"
    pooled = f"{POOLINGS[poolings[0]]}. " if main else ""
    caption = (
        f"{pooled}Accuracy on {_span(curve.samples for curve in shown)} samples as attention heads are removed, "
        f"{ORDERS[order]}: the {better} the curve the better."
    )
    runs = [curve.runs for curve in shown if curve.order == RANDOM]
    if runs:
        caption += f" Random is the mean over {_span(runs)} orders, its band their extremes."
    name = f"pruning_{task}_{order}{'_main' * main}"
    return figure(
        name, f"{number}. Head pruning, {task}", caption, panels, across, ("heads removed", "accuracy, %"), methods
    )


def _span(numbers: Iterable[int]) -> str:
    """One number, or the fewest to the most."""
    known = sorted(set(numbers))
    return f"{known[0]:,}" if len(known) == 1 else f"{known[0]:,} to {known[-1]:,}"


def curve_label(methods: Methods, method: str) -> str:
    return "Random" if method == RANDOM else label(methods, method)


def _draw_curve(axis: Axes, curve: PruningCurve, methods: Methods, left: Mapping[str, str]) -> None:
    """`left` are colours of methods that have none of their own."""
    if curve.order == RANDOM:
        look: dict[str, Any] = {"color": GREY, "linestyle": "--"}
    elif curve.method in left:
        look = {"color": left[curve.method], "linestyle": "-."}
    else:
        look = {"color": methods[curve.method].colour}
    axis.plot(curve.removed, curve.accuracy, linewidth=1.4, label=curve_label(methods, curve.method), **look)
    if curve.low is not None and curve.high is not None:
        axis.fill_between(curve.removed, curve.low, curve.high, color=look["color"], alpha=0.12, linewidth=0)


def runtime_figures(rows: Iterable[Mapping[str, Any]]) -> list[Figure]:
    """Time, and memory where it is known, against length, for each device; rows are those of the runtime schema with
    their model and dtype. Whole passes only, tasks taken together: a panel a model, a line a pass.
    """
    by_pass = costs(dict(row, task="") for row in rows if row["stage"] == "method")
    figures = []
    for number, device in enumerate(dict.fromkeys(key.device for key in by_pass)):
        own = {key: cost for key, cost in by_pass.items() if key.device == device}
        figures.append(_cost_figure(device, f"runtime_{number}", own, "time"))
        if any(cost.peak_bytes for cost in own.values()):
            figures.append(_cost_figure(device, f"memory_{number}", own, "memory"))
    return figures


def _cost_figure(device: str, name: str, by_pass: Mapping[Pass, Cost], what: str) -> Figure:
    """Log-log: `what` is time (milliseconds a sample) or memory (peak MiB of a batch)."""
    models = list(dict.fromkeys((key.model, key.dtype) for key in by_pass))
    passes = list(dict.fromkeys(key.method for key in by_pass))
    lengths = sorted({key.length for key in by_pass})

    def draw(axis: Axes, model: tuple[str, str]) -> None:
        for index, method in enumerate(passes):
            points = {k.length: c for k, c in by_pass.items() if (k.model, k.dtype, k.method) == (*model, method)}
            _draw_costs(axis, points, method, COLOURS[index % len(COLOURS)], what)
        axis.set_title(" · ".join(model), fontsize=9, loc="left")
        axis.set(xscale="log", yscale="log", xlim=(lengths[0] / 1.2, lengths[-1] * 1.2))
        axis.xaxis.set_major_locator(matplotlib.ticker.LogLocator(base=2))
        axis.yaxis.set_major_locator(matplotlib.ticker.LogLocator(base=10, subs=(1, 2, 5)))
        for scale in (axis.xaxis, axis.yaxis):
            scale.set_major_formatter(matplotlib.ticker.FuncFormatter(lambda x, _: f"{x:g}"))
            scale.set_minor_locator(matplotlib.ticker.NullLocator())

    panels = [partial(draw, model=model) for model in models]
    names = ("tokens of the longest sample, up to", "ms per sample" if what == "time" else "peak MiB of a batch")
    caption = "Both axes are logarithmic. "
    caption += "Lines are medians over batches, bands their quartiles." if what == "time" else "Beyond the weights."
    title = f"{what.capitalize()} against length, {device}"
    return figure(name, title, caption, panels, min(ACROSS, len(models)), names, {})


def _draw_costs(axis: Axes, points: Mapping[int, Cost], name: str, colour: str, what: str) -> None:
    lengths = sorted(length for length, cost in points.items() if what == "time" or cost.peak_bytes)
    look: Any = {"color": colour, "marker": "o", "linewidth": 1.2, "markersize": 3.5, "label": name}
    if what == "memory":
        axis.plot(lengths, [(points[length].peak_bytes or 0) / (1 << 20) for length in lengths], **look)
    elif lengths:
        low, median, high = 1000 * np.array([points[length].sample_s for length in lengths]).T
        axis.plot(lengths, median, **look)
        axis.fill_between(lengths, low, high, color=colour, alpha=0.12, linewidth=0)
