"""Neurons in the report: what their removal takes away, by who ranks them, and what crosses layer boundaries."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
from matplotlib.scale import SymmetricalLogScale

from evaluation.report.drawing import Line, Panel, Plot, looks
from evaluation.report.page import Figure
from evaluation.report.results import Methods, label, rank
from evaluation.report.table import (
    BOLD,
    DONE,
    MISSING,
    NOT_FINITE,
    UNSEEN,
    Cell,
    Column,
    Entry,
    Table,
    difference_cell,
    interval_of,
    of_group,
    smallest_told,
)
from evaluation.schema import NEURONS
from evaluation.scoring.head_orders import ACTIVATION, RANDOM
from evaluation.scoring.intervals import mean_intervals, numbered
from evaluation.scoring.statistics import Comparison, compare

_NAMES = {RANDOM: "Random", ACTIVATION: "Activation"}
_DIGITS = 2


@dataclass(frozen=True)
class Knockouts:
    """Knock-outs of a model and task: the drop of the explained number, on the samples that all rankings have.

    A ranking without any finite sample is left out, so that it does not take all samples from the others.
    """

    model: str
    task: str
    explanation: str
    rankings: tuple[str, ...]  # with samples
    counts: tuple[int, ...]  # neurons that are gone
    drops: np.ndarray  # [N, M, K], of samples, rankings and counts
    lost: int  # samples left out, which a ranking lacks or whose logits are not finite
    empty: tuple[str, ...] = ()  # rankings without samples
    clusters: np.ndarray | None = None  # [N], numbers of the samples' clusters

    @classmethod
    def of(
        cls,
        model: str,
        task: str,
        explanation: str,
        counts: Sequence[int],
        told: Mapping[str, Mapping[str, np.ndarray]],
        clusters: Mapping[str, str] = MappingProxyType({}),
    ) -> Knockouts:
        """`told` has the explained number [1 + K], with no neuron gone first, by ranking and sample.

        `clusters` names those of samples that share one.
        """
        every = {name for of in told.values() for name in of}
        finite = {by: {name: own for name, own in of.items() if np.isfinite(own).all()} for by, of in told.items()}
        known = {by: of for by, of in finite.items() if of}
        common = sorted(set.intersection(*map(set, known.values()))) if known else []
        shape = (len(common), len(known), 1 + len(counts))
        numbers = np.array([[of[name] for of in known.values()] for name in common]).reshape(shape)
        drops = numbers[..., :1] - numbers[..., 1:]
        empty = tuple(by for by in told if by not in known)
        shown, lost = (model, task, explanation, tuple(known), tuple(counts), drops), len(every) - len(common)
        return cls(*shown, lost, empty, numbered(clusters, common))

    def compared(self, resamples: int, seed: int) -> Comparison | None:
        """Means with intervals, and paired tests between rankings; None without samples."""
        return compare(
            self.drops, self.rankings, tuple(map(str, self.counts)), resamples, seed, 1.0, clusters=self.clusters
        )


#: What neurons that are gone have in common, by the value that a config gives them.
GONE = {"zero": "are zero", "mean": "have their mean over the corpus"}


def knockout_figure(
    knockouts: Sequence[Knockouts], methods: Methods, resamples: int, seed: int, value: str = "zero"
) -> list[Figure]:
    """A panel for each task and model: the mean drop against the neurons that are gone, with intervals.

    `value`, of GONE, is what these have instead.
    """
    shown = [one for one in knockouts if len(one.drops)]
    look = looks({name for one in shown for name in one.rankings}, methods, RANDOM)
    panels = []
    for one in shown:
        lines = []
        for at, name in enumerate(one.rankings):
            low, high = mean_intervals(one.drops[:, at], max(1, resamples), seed, None, one.clusters)
            points = {"color": look[name]["color"], "marker": "o", "markersize": 3}
            lines.append(Line(named(methods, name), one.counts, one.drops[:, at].mean(0), points, low, high))
        scale = SymmetricalLogScale(None, linthresh=1)
        ticks = {"xscale": scale, "xticks": one.counts, "xticklabels": list(map(str, one.counts))}
        panels.append(Panel(f"{one.task} · {one.model}", lines, ticks))
    caption = (
        f"How much of the explained number is lost when the first neurons of a ranking {GONE[value]} at all positions. "
        "Random neurons are drawn anew for each sample; activation ranks by the largest over positions. "
        "Bands are 95 % intervals over samples."
    )
    axes = ("neurons that are gone", "drop of the logit")
    return Plot("knockouts", "Neurons knocked out", caption, axes).figures(panels, methods)


def knockout_table(
    knockouts: Sequence[Knockouts],
    methods: Methods,
    missing: Sequence[tuple[str, str, str]],
    resamples: int,
    seed: int,
    value: str = "zero",
) -> Table:
    """A ranking a row, the mean drop at each count a column, tested against random neurons on the same samples.

    `missing` are (task, model, ranking) without numbers yet; `value` as in :func:`knockout_figure`.
    """
    caption = (
        f"The drop of the explained number when the first n neurons {GONE[value]}, with 95 % intervals; "
        "p is of the difference from random neurons (paired sign flips, adjusted by Holm's method over the pairs of "
        f"rankings). {BOLD} {UNSEEN}"
    )
    lost = sum(one.lost for one in knockouts)
    note = f" {lost} samples are left out, which some ranking lacks or whose logits are not finite." if lost else ""
    counts = {count: None for one in knockouts for count in one.counts}
    columns = {n: Column("neurons gone", str(n), digits=_DIGITS) for n in sorted(counts)}
    frame = []
    for one in knockouts:
        compared = one.compared(resamples, seed)
        for name in (*one.rankings, *one.empty):
            for count, column in columns.items():
                cell = Cell(state=NOT_FINITE) if name in one.empty else _cell(one, compared, name, count)
                frame.append(Entry(one.task, (one.model, named(methods, name)), column, cell))
        frame += smallest_told(one.task, (one.model,), {str(n): column for n, column in columns.items()}, compared)
    for task, model, name in missing:
        labels = (model, named(methods, name))
        frame += [Entry(task, labels, column, Cell(state=MISSING)) for column in columns.values()]
    frame.sort(key=lambda entry: entry.section)
    return Table("knockouts", "Neurons knocked out", caption, ("model", "ranking")).filled(frame, note)


def _cell(one: Knockouts, compared: Comparison | None, name: str, count: int) -> Cell:
    if count not in one.counts or not len(one.drops):
        return Cell(state=MISSING)
    at = one.rankings.index(name), one.counts.index(count)
    random = difference_cell(compared, name, RANDOM, str(count))
    low, high = interval_of(compared, name, str(count))
    cell = Cell(float(one.drops[:, *at].mean()), DONE, len(one.drops), low, high, random.p)
    return of_group(cell, compared, name, str(count), higher_is_better=True)


def named(methods: Methods, name: str) -> str:
    """A ranking in words."""
    return _NAMES.get(name) or label(methods, name)


#: Why layers keep relevance: routers where there are experts.
REASONS = tuple(name.removeprefix("kept_by_") for name in NEURONS.names if name.startswith("kept_by_"))


@dataclass(frozen=True)
class Crossing:
    """Relevance that crosses the layer boundaries of a model on a task under one method, means over samples."""

    model: str
    task: str
    method: str
    boundaries: np.ndarray  # [L + 1], as shares of the mean relevance above the last block
    kept: np.ndarray  # [L, R], by the first of REASONS, likewise
    neurons: np.ndarray  # [L], of the feed-forward layers


def crossing_figure(crossings: Sequence[Crossing], methods: Methods) -> list[Figure]:
    """A panel for each task and model, a line a method."""
    look = looks({one.method for one in crossings}, methods)
    unstable = any(one.method in methods and methods[one.method].unstable for one in crossings)
    lines: dict[str, list[Line]] = defaultdict(list)
    for one in sorted(crossings, key=lambda one: rank(methods, one.method)):
        colour = {"color": look[one.method]["color"]}
        line = Line(label(methods, one.method), range(len(one.boundaries)), one.boundaries, colour)
        lines[f"{one.task} · {one.model}"].append(line)
    titles = dict.fromkeys(f"{one.task} · {one.model}" for one in crossings)
    panels = [Panel(title, lines[title], {"yscale": "symlog" if unstable else "linear"}) for title in titles]
    caption = (
        "Relevance that crosses each layer boundary, a mean over samples: 0 is below the first block, the last above "
        "the last one. Where a method conserves, what is lost on the way down is what biases and softmax keep."
    )
    axes = ("boundary", "relevance")
    return Plot("boundaries", "Conservation by layer", caption, axes).figures(panels, methods)


CROSSING = Table(
    "boundaries",
    "Conservation by layer",
    "Means over samples of what crosses a block, of what it keeps, and of what its feed-forward neurons hold.",
    ("model", "method", "layer"),
)


def crossing_table(crossings: Sequence[Crossing], methods: Methods) -> Table:
    """A layer a row: what enters from above, what leaves below, what is kept, and what its neurons hold."""
    reasons = max(one.kept.shape[1] for one in crossings)
    frame = []
    for one in crossings:
        for layer in reversed(range(len(one.kept))):
            above, below = one.boundaries[layer + 1], one.boundaries[layer]
            kept = np.zeros(reasons)
            kept[: one.kept.shape[1]] = one.kept[layer]
            numbers = {"from above": above, "to below": below}
            numbers |= {f"kept by {reason}": share for reason, share in zip(REASONS, kept, strict=False)}
            numbers |= {"unaccounted": above - below - kept.sum(), "neurons": one.neurons[layer]}
            labels = (one.model, label(methods, one.method), str(layer))
            for name, number in numbers.items():
                column = Column("relevance", name, digits=3, signed=True)
                frame.append(Entry(one.task, labels, column, Cell(round(float(number), 6) + 0.0)))
    return CROSSING.filled(frame)
