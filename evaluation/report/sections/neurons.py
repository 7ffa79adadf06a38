"""Neurons in the report: the drop of the explained number when neurons are ablated, and relevance layer by layer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.scale import SymmetricalLogScale

from closelook.evaluation.report.drawing import Curve, Plot, curve_panels
from closelook.evaluation.report.page import Figure
from closelook.evaluation.report.results import Methods, label, rank
from closelook.evaluation.report.table import (
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
    fills,
    interval_of,
    marked_if_best,
    smallest_differences,
)
from closelook.evaluation.schema import NEURONS
from closelook.evaluation.scoring.faithfulness.areas import on_common_samples
from closelook.evaluation.scoring.head_orders import RANDOM
from closelook.evaluation.scoring.intervals import NO_CLUSTERS, ClusterNumbers, Clusters, Resampling, cluster_numbers
from closelook.evaluation.scoring.statistics import Comparison, compare

_DIGITS = 2


Explained = Mapping[str, np.ndarray]  # by sample: the explained number without ablation and after each count


@dataclass(frozen=True)
class Ablations:
    """Neuron ablations of a model and task: the drop of the explained number, on the samples that all rankings have.

    A ranking without any finite sample is left out, since it would leave no samples to the others.
    """

    model: str
    task: str
    rankings: tuple[str, ...]  # M rankings with samples
    counts: tuple[int, ...]  # K numbers of ablated neurons
    drops: np.ndarray  # [N, M, K], by sample, ranking and count
    lost: int  # samples that are left out, because a ranking lacks them or logits are not finite
    empty: tuple[str, ...] = ()  # rankings without samples
    clusters: ClusterNumbers = None  # [N] numbers of the samples' clusters

    @classmethod
    def of(
        cls,
        model: str,
        task: str,
        counts: Sequence[int],
        explained: Mapping[str, Explained],
        clusters: Clusters = NO_CLUSTERS,
    ) -> Ablations:
        """The drops from the `explained` number [1 + K] by ranking and sample, whose first value is without ablation.

        `clusters` maps samples that share a cluster to its name.
        """
        samples = {name for by_sample in explained.values() for name in by_sample}
        known: dict[str, dict[str, np.ndarray]] = {}
        for ranking, by_sample in explained.items():
            finite = {name: numbers for name, numbers in by_sample.items() if np.isfinite(numbers).all()}
            if finite:
                known[ranking] = finite
        common, stacked = on_common_samples(known)
        stacked = stacked.reshape(len(common), len(known), 1 + len(counts))
        drops = stacked[..., :1] - stacked[..., 1:]
        empty = tuple(ranking for ranking in explained if ranking not in known)
        lost, numbers = len(samples) - len(common), cluster_numbers(clusters, common)
        return cls(model, task, tuple(known), tuple(counts), drops, lost, empty, numbers)

    def compared(self, resampling: Resampling) -> Comparison | None:
        """Mean drops with intervals, and paired tests between rankings; None without samples."""
        counts = tuple(map(str, self.counts))
        return compare(self.drops, self.rankings, counts, resampling.within(self.clusters), 1.0)


def ablation_figure(ablations: Sequence[Ablations], methods: Methods, resampling: Resampling) -> list[Figure]:
    """The mean drop against the number of ablated neurons, with intervals: a panel for each task and model."""
    curves = []
    for ablation in ablations:
        compared, panel = ablation.compared(resampling), f"{ablation.task} · {ablation.model}"
        for name in ablation.rankings if len(ablation.drops) else ():
            cells = [_cell(ablation, compared, name, str(count)) for count in ablation.counts]
            means, low, high = np.array([(cell.value, cell.low, cell.high) for cell in cells], float).T
            curves.append(Curve(panel, name, ablation.counts, means, low, high))
    counts = sorted({count for curve in curves for count in curve.x})
    scale = SymmetricalLogScale(None, linthresh=1)
    ticks = {"xscale": scale, "xticks": counts, "xticklabels": list(map(str, counts))}
    panels = curve_panels(curves, methods, RANDOM, ticks, marker="o", markersize=3)
    caption = (
        "The drop of the explained number when the first neurons of a ranking are set to zero at all positions. "
        "Random neurons are drawn anew for each sample; activation ranks neurons by their largest activation over "
        "positions. Bands are 95 % intervals over samples."
    )
    axes = ("ablated neurons", "drop of the logit")
    return Plot("knockouts", "Neuron ablation", caption, axes, tabled=True).figures(panels, methods)


def ablation_table(ablations: Sequence[Ablations], methods: Methods, resampling: Resampling) -> Table:
    """The mean drop at each number of ablated neurons, tested against random neurons: a row for each ranking."""
    caption = (
        "The drop of the explained number when the first n neurons are set to zero, with 95 % intervals. p is of the "
        "difference from random neurons (paired sign flips, adjusted for all pairs of rankings). "
        f"{BOLD} {UNSEEN}"
    )
    lost = sum(ablation.lost for ablation in ablations)
    reason = "because some ranking lacks them or their logits are not finite"
    note = f" {lost} samples are left out, {reason}." if lost else ""
    counts = {count for ablation in ablations for count in ablation.counts}
    columns = {str(n): Column("neurons gone", str(n), digits=_DIGITS) for n in sorted(counts)}
    frame = []
    for ablation in ablations:
        compared = ablation.compared(resampling)
        for name in (*ablation.rankings, *ablation.empty):
            for count, column in columns.items():
                cell = _cell(ablation, compared, name, count)
                frame.append(Entry(ablation.task, (ablation.model, label(methods, name)), column, cell))
        frame += smallest_differences(ablation.task, (ablation.model,), columns, compared)
    return Table("knockouts", "Neuron ablation", caption, ("model", "ranking")).filled([*frame, note])


def _cell(ablation: Ablations, compared: Comparison | None, name: str, count: str) -> Cell:
    """The mean drop after the first `count` neurons of the ranking `name`, or the reason that there is none."""
    if name in ablation.empty:
        return Cell(state=NOT_FINITE)
    if int(count) not in ablation.counts or not len(ablation.drops):
        return Cell(state=MISSING)
    at = ablation.rankings.index(name), ablation.counts.index(int(count))
    random = difference_cell(compared, name, RANDOM, count)
    low, high = interval_of(compared, name, count)
    cell = Cell(float(ablation.drops[:, *at].mean()), DONE, len(ablation.drops), low, high, random.p)
    return marked_if_best(cell, compared, name, count, higher_is_better=True)


#: Parts of a block that keep relevance, such as biases and the softmax; routers only in mixtures of experts.
REASONS = tuple(name.removeprefix("kept_by_") for name in NEURONS.names if name.startswith("kept_by_"))


@dataclass(frozen=True)
class Crossing:
    """Relevance at the layer boundaries of a model on a task under one method, as means over samples.

    All numbers are shares of the mean relevance above the last block.
    """

    model: str
    task: str
    method: str
    boundaries: np.ndarray  # [L + 1] relevance at each boundary, from below the first block to above the last
    kept: np.ndarray  # [L, R] relevance that a block keeps, by the first R of REASONS
    neurons: np.ndarray  # [L] relevance of the feed-forward neurons


def crossing_figure(crossings: Sequence[Crossing], methods: Methods) -> list[Figure]:
    """Relevance at each layer boundary: a panel for each task and model, a line for each method."""
    unstable = any(methods[each.method].unstable for each in crossings if each.method in methods)
    curves = []
    for crossing in sorted(crossings, key=lambda crossing: rank(methods, crossing.method)):
        boundaries = crossing.boundaries
        curves.append(Curve(f"{crossing.task} · {crossing.model}", crossing.method, range(len(boundaries)), boundaries))
    panels = curve_panels(curves, methods, axis={"yscale": "symlog" if unstable else "linear"})
    caption = (
        "Relevance that crosses each layer boundary, a mean over samples: boundary 0 is below the first block, the "
        "last boundary above the last block. If a method conserves relevance, the loss on the way down is the share "
        "that biases and the softmax keep."
    )
    axes = ("boundary", "relevance")
    return Plot("boundaries", "Conservation by layer", caption, axes, tabled=True).figures(panels, methods)


CROSSING = Table(
    "boundaries",
    "Conservation by layer",
    "Means over samples of the relevance that enters and leaves a block, that it keeps, and that its feed-forward "
    "neurons have.",
    ("model", "method", "layer"),
)


@fills(CROSSING)
def crossing_table(crossings: Sequence[Crossing], methods: Methods) -> Iterator[Entry]:
    """Relevance that enters each block from above, leaves it below, that it keeps, and that its neurons have."""
    reasons = max((crossing.kept.shape[1] for crossing in crossings), default=0)
    for crossing in crossings:
        for layer in reversed(range(len(crossing.kept))):
            above, below = crossing.boundaries[layer + 1], crossing.boundaries[layer]
            kept = np.zeros(reasons)
            kept[: crossing.kept.shape[1]] = crossing.kept[layer]
            numbers = {"from above": above, "to below": below}
            numbers |= {f"kept by {reason}": share for reason, share in zip(REASONS, kept, strict=False)}
            numbers |= {"unaccounted": above - below - kept.sum(), "neurons": crossing.neurons[layer]}
            labels = (crossing.model, label(methods, crossing.method), str(layer))
            for name, number in numbers.items():
                column = Column("relevance", name, digits=3, signed=True)
                yield Entry(crossing.task, labels, column, Cell(round(float(number), 6) + 0.0))
