"""Plots as SVG: pruning curves (figures 2 to 5 of Close Look), and cost against length.

Figures are built without pyplot's global state, text stays text, and equal data give equal bytes.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib
import matplotlib.ticker
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Plot

from evaluation.report.page import Figure
from evaluation.report.results import LABELS, label, rank
from evaluation.scoring.runtime import Cost, Pass, costs

#: Okabe and Ito's colours, and for methods beyond eight their dashed repetition.
_COLOURS = ("#d55e00", "#0072b2", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7a6a00", "#000000")
_STYLE: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "closelook",
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#8a8577",
    "axes.grid": True,
    "grid.color": "#ece8de",
    "legend.frameon": False,
}
POOLINGS = {"relu_dim": "ReLU dim", "relu_token": "ReLU per token", "none": "no ReLU"}
ORDERS = {"least_first": "least relevant heads first", "most_first": "most relevant heads first"}
NUMBERS = {"ra": "Figure 3", "sva": "Figure 4", "qa": "Figure 5"}


@dataclass(frozen=True)
class Curve:
    """Accuracy [S] in percent after `removed` [S] heads; `low` and `high` are the extremes of random orders."""

    model: str
    task: str
    method: str
    pooling: str
    order: str
    removed: np.ndarray
    accuracy: np.ndarray
    low: np.ndarray | None = None
    high: np.ndarray | None = None


def curves_of(rows: Iterable[Mapping[str, Any]]) -> list[Curve]:
    """`rows` are those of the pruning schema with their `model` and `task`; random orders become one mean curve."""
    runs: dict[tuple[str, str, str, str, str], dict[Any, list[tuple[int, int, float]]]] = {}
    for row in rows:
        key = (row["model"], row["task"], row["method"], row["pooling"], row["order"])
        point = (row["step"], len(row["pruned_heads"]), 100 * row["accuracy"])
        runs.setdefault(key, {}).setdefault(row["seed"], []).append(point)
    curves = []
    for key, seeds in runs.items():
        paths = [np.array(sorted(points)) for points in seeds.values()]  # [S, 3] each
        removed = np.cumsum(paths[0][:, 1])
        accuracy = np.stack([path[:, 2] for path in paths])  # [seeds, S]
        low, high = (accuracy.min(axis=0), accuracy.max(axis=0)) if len(paths) > 1 else (None, None)
        curves.append(Curve(*key, removed, accuracy.mean(axis=0), low, high))
    return curves


def pruning_figures(curves: Sequence[Curve]) -> list[Figure]:
    """Figure 2 (sva, ReLU per token), then a figure for each task and order: models down, poolings across."""
    figures = []
    main = [c for c in curves if c.task == "sva" and c.pooling == "relu_token" and c.order == "least_first"]
    if main:
        figures.append(_grid(curves, "sva", "least_first", ["relu_token"], "Figure 2", wide=True))
    for task in dict.fromkeys(curve.task for curve in curves):
        for order in ORDERS:
            own = {curve.pooling for curve in curves if (curve.task, curve.order) == (task, order)}
            poolings = [pooling for pooling in POOLINGS if pooling in own]
            number = NUMBERS.get(task, "Figure") if order == "least_first" else "Ours"
            if poolings and not (main and task == "sva" and order == "least_first" and poolings == ["relu_token"]):
                figures.append(_grid(curves, task, order, poolings, number))
    return figures


def _grid(
    curves: Sequence[Curve], task: str, order: str, poolings: Sequence[str], number: str, wide: bool = False
) -> Figure:
    """Models down and poolings across; with `wide`, models across."""
    models = list(dict.fromkeys(curve.model for curve in curves if curve.task == task))
    cells = [(model, pooling) for model in models for pooling in poolings]
    across = min(3, len(models)) if wide else len(poolings)
    down = -(-len(cells) // across)
    with matplotlib.rc_context(_STYLE):
        plot = Plot(figsize=(max(4.2, 3.5 * across), 2.5 * down + 0.7), layout="constrained")
        axes = plot.subplots(down, across, squeeze=False)
        for axis, (model, pooling) in zip(axes.flat, cells, strict=False):
            own = [c for c in curves if (c.model, c.task) == (model, task)]
            shown = [c for c in own if (c.pooling, c.order) == (pooling, order) or c.order == "random"]
            for curve in sorted(shown, key=lambda curve: rank(curve.method)):
                _draw(axis, curve)
            axis.set_title(f"{model} · {POOLINGS[pooling]}", fontsize=9, loc="left")
            axis.set_ylim(-3, 103)
            axis.set_xlabel("heads removed")
            axis.set_ylabel("accuracy, %")
        for axis in axes.flat[len(cells) :]:
            axis.set_visible(False)
        handles = {handle.get_label(): handle for axis in axes.flat for handle in axis.get_lines()}
        plot.legend(handles=list(handles.values()), loc="outside lower center", ncols=4)
    better = "higher" if order == "least_first" else "lower"
    caption = (
        f"Accuracy on {task} as heads are removed, {ORDERS[order]}: the {better} the curve the better. "
        "Random is the mean over orders, its band their extremes."
    )
    return _figure(plot, f"pruning_{task}_{order}{'_main' * wide}", f"{number}. Head pruning, {task}", caption)


def _draw(axis: Axes, curve: Curve) -> None:
    methods = [method for method in LABELS if method != "random"]
    if curve.order == "random":
        look: dict[str, Any] = {"color": "#8a8577", "linestyle": "--"}
    else:
        index = methods.index(curve.method) if curve.method in methods else len(methods)
        style = "-" if index < len(_COLOURS) else "-."
        look = {"color": _COLOURS[index % len(_COLOURS)], "linestyle": style}
    axis.plot(curve.removed, curve.accuracy, linewidth=1.4, label=label(curve.method), **look)
    if curve.low is not None and curve.high is not None:
        axis.fill_between(curve.removed, curve.low, curve.high, color=look["color"], alpha=0.15, linewidth=0)


def runtime_figures(rows: Iterable[Mapping[str, Any]]) -> list[Figure]:
    """A figure a device from rows of the runtime schema with their model and dtype; tasks are taken together."""
    found = costs(dict(row, task="") for row in rows)
    return [
        _runtime_figure(device, number, {key: cost for key, cost in found.items() if key.device == device})
        for number, device in enumerate(dict.fromkeys(key.device for key in found))
    ]


def _runtime_figure(device: str, number: int, found: Mapping[Pass, Cost]) -> Figure:
    """Log-log: seconds a sample, and peak bytes where they are known, against length; a line a pass and model."""
    several = len({key.dtype for key in found}) > 1
    lines: dict[tuple[str, str], dict[int, Cost]] = {}
    for key, cost in found.items():
        model = f"{key.model} {key.dtype}" if several else key.model
        name = key.method if key.stage == "method" else f"{key.method} {key.stage}"
        lines.setdefault((model, name), {})[key.length] = cost
    memory = any(cost.peak_bytes for points in lines.values() for cost in points.values())
    passes = list(dict.fromkeys(name for _, name in lines))
    models = list(dict.fromkeys(model for model, _ in lines))
    marks = "osD^vP*X"
    with matplotlib.rc_context(_STYLE):
        plot = Plot(figsize=(5.2 * (1 + memory), 4.4), layout="constrained")
        axes = plot.subplots(1, 1 + memory, squeeze=False)[0]
        for (model, name), points in lines.items():
            lengths = sorted(points)
            mark = marks[models.index(model) % len(marks)]
            look: Any = {"color": _COLOURS[passes.index(name) % len(_COLOURS)], "marker": mark}
            times = np.array([points[length].sample_s for length in lengths])  # [points, 3]
            axes[0].plot(lengths, times[:, 1], linewidth=1.2, markersize=4, label=f"{model}, {name}", **look)
            axes[0].fill_between(lengths, times[:, 0], times[:, 2], color=look["color"], alpha=0.12, linewidth=0)
            if memory:
                peaks = [points[length].peak_bytes or np.nan for length in lengths]
                axes[1].plot(lengths, peaks, linewidth=1.2, markersize=4, **look)
        for axis, name in zip(axes, ("seconds per sample", "peak bytes of a batch"), strict=False):
            axis.set(xscale="log", yscale="log", xlabel="tokens of the batch's longest sample, up to", ylabel=name)
            axis.xaxis.set_major_locator(matplotlib.ticker.LogLocator(base=2))
            axis.xaxis.set_major_formatter(matplotlib.ticker.FuncFormatter(lambda x, _: f"{x:g}"))
            axis.xaxis.set_minor_locator(matplotlib.ticker.NullLocator())
        plot.legend(loc="outside lower center", ncols=3, fontsize=8)
    caption = "Both axes are logarithmic. Lines are medians over batches, bands their quartiles."
    return _figure(plot, f"runtime_{number}", f"Time and memory against length, {device}", caption)


def _figure(plot: Plot, name: str, title: str, caption: str) -> Figure:
    sink = io.StringIO()
    with matplotlib.rc_context(_STYLE):
        plot.savefig(sink, format="svg", metadata={"Date": None, "Creator": None}, transparent=True)
    return Figure(name, title, caption, sink.getvalue(), width=round(plot.get_figwidth() * 96))
