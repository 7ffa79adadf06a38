"""Head pruning: accuracy as attention heads are removed (figures 2 to 5 of Close Look), and areas under the curves."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from operator import itemgetter
from typing import Any

import numpy as np

from closelook.evaluation.report.drawing import Curve, Plot, curve_panels
from closelook.evaluation.report.page import Figure
from closelook.evaluation.report.results import Methods, Results, ordered, rank
from closelook.evaluation.report.table import (
    BOLD,
    UNDEFINED_CELL,
    UNSEEN,
    Cell,
    Column,
    Entry,
    Table,
    marked_if_best,
    mean_cell,
    smallest_differences,
)
from closelook.evaluation.scoring.faithfulness.areas import on_common_samples
from closelook.evaluation.scoring.faithfulness.scores import summarise
from closelook.evaluation.scoring.head_orders import NOT_POOLED, RANDOM
from closelook.evaluation.scoring.intervals import Clusters, Resampling, cluster_numbers
from closelook.evaluation.scoring.statistics import Comparison, compare
from closelook.evaluation.tasks import Task

POOLINGS = {"relu_dim": "ReLU dim", "relu_token": "ReLU per token", "none": "no ReLU"}
ORDERS = {"least_first": "least relevant heads first", "most_first": "most relevant heads first"}
MAIN_POOLING = "relu_token"  # of the figure in Close Look's main text
OURS = "Ours"  # instead of a number, for figures that Close Look does not have
AREA = "area"
Tasks = Mapping[str, Task]
Setting = tuple[str, str, str]  # method, order, pooling
_Areas = dict[Setting, dict[str, list[float]]]
_RANDOM = (RANDOM, NOT_POOLED)
_USUAL = Resampling(1000)


@dataclass(frozen=True)
class PruningCurve:
    """A pruning curve: accuracy after each number of removed heads."""

    model: str
    task: str
    method: str
    pooling: str
    order: str
    removed: np.ndarray  # [S] numbers of removed heads
    accuracy: np.ndarray  # [S] in percent
    low: np.ndarray | None = None  # [S] extremes of random orders
    high: np.ndarray | None = None
    runs: int = 1  # random orders in the mean
    samples: int = 0


@dataclass(frozen=True)
class PrunedAreas:
    """The area under the pruning curve of every sample, in percent, for the methods of a model and task.

    Areas are by (method, order, pooling) and sample.
    """

    model: str
    task: str
    paper: Mapping[Setting, Mapping[str, float]]  # heads are ranked on all samples
    halves: Mapping[Setting, Mapping[str, float]]  # heads are ranked on the half that does not hold the sample

    def compared(self, order: str, pooling: str, resampling: Resampling, clusters: Clusters) -> Comparison | None:
        """Compares methods, and random orders, by the areas in `halves`, on the samples that all have.

        Returns None without areas or samples. `clusters` maps samples that share a cluster to its name.
        """
        by_method = {key[0]: areas for key, areas in self.halves.items() if key[1:] in ((order, pooling), _RANDOM)}
        common, areas = on_common_samples(by_method)
        values = areas.reshape(len(common), len(by_method), 1)
        drawn = resampling.within(cluster_numbers(clusters, common))
        return compare(values, tuple(by_method), (AREA,), drawn, scale=1.0)


def areas_of(rows: Iterable[Mapping[str, Any]]) -> list[PrunedAreas]:
    """Areas by model and task, from rows of the schema PRUNING with `model` and `task` added.

    Rows without areas of samples are left out. A sample's area under random orders is the mean over the orders.
    """
    by_task: dict[tuple[str, str], tuple[_Areas, _Areas]] = {}
    for row in (row for row in rows if row["samples"] is not None):
        paper, halves = by_task.setdefault((row["task"], row["model"]), (defaultdict(dict), defaultdict(dict)))
        sides = [halves] if row["half"] is not None else [paper]
        if row["order"] == RANDOM:
            sides = [paper, halves]
        for side in sides:
            by_sample = side[row["method"], row["order"], row["pooling"]]
            for sample, value in zip(row["samples"], row["areas"], strict=True):
                by_sample.setdefault(sample, []).append(100 * value)
    return [PrunedAreas(model, task, *map(_means, sides)) for (task, model), sides in by_task.items()]


def _means(side: _Areas) -> dict[Setting, dict[str, float]]:
    """The mean area of each sample over orders."""
    means = {}
    for setting, by_sample in side.items():
        means[setting] = {sample: float(np.mean(values)) for sample, values in by_sample.items()}
    return means


def curves_of(rows: Iterable[Mapping[str, Any]]) -> list[PruningCurve]:
    """Curves from rows of the schema PRUNING with `model` and `task` added; random orders become one mean curve.

    Curves whose heads are ranked on half of the samples are left out.
    """
    runs: dict[tuple[str, str, str, str, str], dict[Any, list[Mapping[str, Any]]]] = {}
    for row in rows:
        if row["half"] is None:
            key = (row["model"], row["task"], row["method"], row["pooling"], row["order"])
            runs.setdefault(key, {}).setdefault(row["seed"], []).append(row)
    curves = []
    for key, by_seed in runs.items():
        paths = [sorted(path, key=itemgetter("step")) for path in by_seed.values()]
        removed = np.cumsum([len(row["pruned_heads"]) for row in paths[0]])
        accuracy = np.array([[100 * row["accuracy"] for row in path] for path in paths])  # [seeds, S]
        low, high = (accuracy.min(axis=0), accuracy.max(axis=0)) if len(paths) > 1 else (None, None)
        curves.append(PruningCurve(*key, removed, accuracy.mean(axis=0), low, high, len(paths), paths[0][0]["n"]))
    return curves


def pruning_figures(curves: Sequence[PruningCurve], methods: Methods, tasks: Tasks) -> list[Figure]:
    """The figures of pruning: those of Close Look, with their numbers, then those of the opposite order.

    A task with a figure in Close Look's main text (ReLU per token) has it first, with a panel for each model. Every
    task then has a figure with all poolings: models down, poolings across.
    """
    by_task: dict[str, list[PruningCurve]] = defaultdict(list)
    for curve in curves:
        by_task[curve.task].append(curve)
    known = sorted(by_task, key=lambda task: (tasks[task].figure or OURS, task))
    figures: list[Figure] = []
    for task in known:
        number = tasks[task].main_figure
        if number and any((c.pooling, c.order) == (MAIN_POOLING, "least_first") for c in by_task[task]):
            figures += _pruning_figure(by_task[task], methods, "least_first", [MAIN_POOLING], number, main=True)
    for order in ORDERS:
        for task in known:
            computed = {curve.pooling for curve in by_task[task] if curve.order == order}
            poolings = [pooling for pooling in POOLINGS if pooling in computed]
            title = (tasks[task].figure if order == "least_first" else None) or OURS
            if poolings:
                figures += _pruning_figure(by_task[task], methods, order, poolings, title)
    return figures


def _pruning_figure(
    curves: Sequence[PruningCurve],
    methods: Methods,
    order: str,
    poolings: Sequence[str],
    number: str,
    main: bool = False,
) -> list[Figure]:
    """A figure of a task's `curves` with a panel for each model and pooling."""
    task, models = curves[0].task, list(dict.fromkeys(curve.model for curve in curves))
    ranked = [curve for curve in curves if curve.order == order and curve.pooling in poolings]
    random = [curve for curve in curves if curve.order == RANDOM]
    shown = sorted([*ranked, *random], key=lambda curve: rank(methods, curve.method))
    lowest = 10 * math.floor(min(curve.accuracy.min() for curve in shown) / 10)
    drawn: list[Curve] = []
    for model, pooling in product(models, poolings):
        title = model if main else f"{model} · {POOLINGS[pooling]}"
        for c in shown:
            if c.model == model and (c.order == RANDOM or c.pooling == pooling):
                drawn.append(Curve(title, c.method, c.removed, c.accuracy, c.low, c.high))
    panels = curve_panels(drawn, methods, RANDOM, {"ylim": (lowest - 2, 102)}, linewidth=1.4)
    better = "higher" if order == "least_first" else "lower"
    caption = (
        f"Accuracy on {span(curve.samples for curve in shown)} samples as attention heads are removed, "
        f"{ORDERS[order]}; a {better} curve is better."
    )
    if main:
        caption = f"{POOLINGS[poolings[0]]}. {caption}"
    if random:
        runs = span(curve.runs for curve in random)
        caption += f" Random is the mean over {runs} random orders; its band shows their extremes."
    name, title = f"pruning_{task}_{order}{'_main' * main}", f"{number}. Head pruning, {task}"
    axes = ("heads removed", "accuracy, %")
    plot = Plot(name, title, caption, axes, len(models) if main else len(poolings), whole=True)
    return plot.figures(panels, methods)


def span(numbers: Iterable[int]) -> str:
    """The range of one or more numbers, or the number if they are equal, for prose.

    >>> span([1200]), span([3, 1, 2])
    ('1,200', '1 to 3')
    """
    known = sorted(set(numbers))
    return f"{known[0]:,}" if len(known) == 1 else f"{known[0]:,} to {known[-1]:,}"


AREAS = Table(
    "pruning_area",
    "Area under the pruning curves",
    "Mean accuracy over the share of removed heads, in percent: higher is better if the least relevant heads are "
    "removed first, lower if the most relevant are. As in the paper, heads are ranked and accuracy is measured on the "
    "same samples. In columns named halves, each half of the samples is measured with heads that the other half ranks. "
    f"Means over samples with 95 % intervals. {BOLD} Tests are of halves. Random is the mean over random orders. "
    f"{UNSEEN}",
    ("model", "method"),
)


def areas_table(areas: Sequence[PrunedAreas], results: Results, resampling: Resampling = _USUAL) -> Table:
    """The mean area under the pruning curves of samples, which is the mean accuracy over the share of removed heads."""
    computed = {setting[1:] for of_task in areas for setting in of_task.paper}
    settings = [(order, pooling) for order in ORDERS for pooling in POOLINGS if (order, pooling) in computed]
    return AREAS.filled(entry for of_task in areas for entry in _entries(of_task, settings, results, resampling))


def _entries(
    areas: PrunedAreas, settings: Sequence[tuple[str, str]], results: Results, resampling: Resampling
) -> Iterator[Entry]:
    """The cells of a model and task."""
    clusters = results.clusters.get(areas.task, {})
    compared = {setting: areas.compared(*setting, resampling, clusters) for setting in settings}
    for method in ordered(results.methods, {setting[0] for setting in areas.paper}):
        labels = (areas.model, results.label(method))
        for order, pooling in settings:
            setting = (method, *(_RANDOM if method == RANDOM else (order, pooling)))
            for name, side in (("", areas.paper), ("halves", areas.halves)):
                cell = _mean_cell(side[setting], clusters, resampling) if setting in side else UNDEFINED_CELL
                if name == "halves":
                    cell = marked_if_best(cell, compared[order, pooling], method, AREA, order == "least_first")
                yield Entry(areas.task, labels, Column(ORDERS[order], POOLINGS[pooling], name), cell)
    for (order, pooling), comparison in compared.items():
        column = Column(ORDERS[order], POOLINGS[pooling], "halves")
        yield from smallest_differences(areas.task, (areas.model,), {AREA: column}, comparison)


def _mean_cell(areas: Mapping[str, float], clusters: Clusters, resampling: Resampling) -> Cell:
    """The mean of the `areas` by sample, with its interval."""
    drawn = resampling.within(cluster_numbers(clusters, list(areas)))
    return mean_cell(summarise(np.array(list(areas.values())), drawn, (0, 100)))
