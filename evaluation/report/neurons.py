"""Neurons in the report: what their removal takes away, by who ranks them, and what crosses layer boundaries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from matplotlib.axes import Axes

from evaluation.report.drawing import ACROSS, GREY, figure, spare_colours
from evaluation.report.page import Figure
from evaluation.report.results import Methods, label, rank
from evaluation.report.table import MISSING, Cell, Column, Row, Table, mark
from evaluation.schema import NEURONS
from evaluation.scoring.rankings import ACTIVATION, RANDOM
from evaluation.scoring.statistics import Comparison, bootstrap_means, compare, interval

_NAMES = {RANDOM: "Random", ACTIVATION: "Activation"}
_DIGITS = 2


@dataclass(frozen=True)
class Knockouts:
    """What one task of a model lost: the drop of the explained number, on the samples that all rankings have.

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

    @classmethod
    def of(
        cls,
        model: str,
        task: str,
        explanation: str,
        counts: Sequence[int],
        told: Mapping[str, Mapping[str, np.ndarray]],
    ) -> Knockouts:
        """`told` has the explained number [1 + K], with no neuron gone first, by ranking and sample."""
        every = {name for of in told.values() for name in of}
        finite = {by: {name: own for name, own in of.items() if np.isfinite(own).all()} for by, of in told.items()}
        known = {by: of for by, of in finite.items() if of}
        common = sorted(set.intersection(*map(set, known.values()))) if known else []
        shape = (len(common), len(known), 1 + len(counts))
        numbers = np.array([[of[name] for of in known.values()] for name in common]).reshape(shape)
        drops = numbers[..., :1] - numbers[..., 1:]
        empty = tuple(by for by in told if by not in known)
        return cls(model, task, explanation, tuple(known), tuple(counts), drops, len(every) - len(common), empty)

    def compared(self, resamples: int, seed: int) -> Comparison | None:
        """Means with intervals, and paired tests between rankings; None without samples."""
        return compare(self.drops, self.rankings, tuple(map(str, self.counts)), resamples, seed, scale=1.0)


#: What neurons that are gone have in common, by the value that a config gives them.
GONE = {"zero": "are zero", "mean": "have their mean over the corpus"}


def knockout_figure(
    knockouts: Sequence[Knockouts], methods: Methods, resamples: int, seed: int, value: str = "zero"
) -> list[Figure]:
    """A panel for each task and model: the mean drop against the neurons that are gone, with intervals.

    `value`, of GONE, is what these have instead.
    """
    shown = [one for one in knockouts if len(one.drops)]
    if not shown:
        return []
    names = {name for one in shown for name in one.rankings} - {RANDOM}
    spare = spare_colours(names, methods)

    def draw(axis: Axes, one: Knockouts) -> None:
        for at, name in enumerate(one.rankings):
            low, high = interval(bootstrap_means(one.drops[:, at], max(1, resamples), seed))
            own = methods[name].colour if name in methods and name != RANDOM else None
            colour = GREY if name == RANDOM else own or spare[name]
            axis.plot(
                one.counts, one.drops[:, at].mean(0), color=colour, marker="o", markersize=3, label=named(methods, name)
            )
            axis.fill_between(one.counts, low, high, color=colour, alpha=0.12, linewidth=0)
        axis.set_xscale("symlog", linthresh=1)
        axis.set_xticks(one.counts, list(map(str, one.counts)))
        axis.minorticks_off()
        axis.set_title(f"{one.task} · {one.model}", fontsize=9, loc="left")

    caption = (
        f"How much of the explained number is lost when the first neurons of a ranking {GONE[value]} at all positions. "
        "Random neurons are drawn anew for each sample; activation ranks by the largest over positions. "
        "Bands are 95 % bootstrap intervals over samples."
    )
    panels = [partial(draw, one=one) for one in shown]
    axes = ("neurons that are gone", "drop of the logit")
    return [figure("knockouts", "Neurons knocked out", caption, panels, min(ACROSS, len(panels)), axes, methods)]


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
    counts = sorted({count for one in knockouts for count in one.counts})
    rows = []
    for one in knockouts:
        compared = one.compared(resamples, seed)
        cells = {count: [_cell(one, compared, name, count) for name in one.rankings] for count in counts}
        marked = [mark(cells[count], _DIGITS) for count in counts]
        for at, name in enumerate(one.rankings):
            row = tuple(column[at] for column in marked)
            rows.append(Row(one.task, (one.model, named(methods, name)), row))
        for name in one.empty:
            rows.append(Row(one.task, (one.model, named(methods, name)), (Cell(state="not finite"),) * len(counts)))
    for task, model, name in missing:
        rows.append(Row(task, (model, named(methods, name)), tuple(Cell(state=MISSING) for _ in counts)))
    rows.sort(key=lambda row: row.section)
    lost = sum(one.lost for one in knockouts)
    caption = (
        f"The drop of the explained number when the first n neurons {GONE[value]}, with 95 % bootstrap intervals; "
        "p is of the difference from random neurons (paired sign flips, adjusted by Holm's method over the pairs of "
        "rankings)."
    ) + (f" {lost} samples are left out, which some ranking lacks or whose logits are not finite." if lost else "")
    columns = tuple(Column("neurons gone", str(count), digits=_DIGITS) for count in counts)
    return Table("knockouts", "Neurons knocked out", caption, ("model", "ranking"), columns, tuple(rows))


def _cell(one: Knockouts, compared: Comparison | None, name: str, count: int) -> Cell:
    if count not in one.counts or not len(one.drops):
        return Cell(state=MISSING)
    m, k = one.rankings.index(name), one.counts.index(count)
    value = float(one.drops[:, m, k].mean())
    if compared is None:
        return Cell(value, n=len(one.drops))
    low, high = float(compared.low[m, k]), float(compared.high[m, k])
    p = float(compared.p[m, one.rankings.index(RANDOM), k]) if RANDOM in one.rankings and name != RANDOM else None
    return Cell(value, n=len(one.drops), low=low, high=high, p=p)


def named(methods: Methods, name: str) -> str:
    """A ranking in words."""
    return _NAMES.get(name) or label(methods, name)


#: Why layers keep relevance: routers where there are experts.
REASONS = tuple(name.removeprefix("kept_by_") for name in NEURONS.names if name.startswith("kept_by_"))


@dataclass(frozen=True)
class Crossing:
    """What crosses the layer boundaries of a model on a task under one method, means over samples."""

    model: str
    task: str
    method: str
    boundaries: np.ndarray  # [L + 1], as shares of the mean relevance above the last block
    kept: np.ndarray  # [L, R], by the first of REASONS, likewise
    neurons: np.ndarray  # [L], of the feed-forward layers


def crossing_figure(crossings: Sequence[Crossing], methods: Methods) -> list[Figure]:
    """A panel for each task and model, a line a method."""
    if not crossings:
        return []
    panels_of = list(dict.fromkeys((one.task, one.model) for one in crossings))
    spare = spare_colours({one.method for one in crossings}, methods)

    def draw(axis: Axes, task: str, model: str) -> None:
        for one in sorted(
            (o for o in crossings if (o.task, o.model) == (task, model)), key=lambda o: rank(methods, o.method)
        ):
            colour = (methods[one.method].colour if one.method in methods else None) or spare.get(one.method)
            axis.plot(range(len(one.boundaries)), one.boundaries, color=colour, label=label(methods, one.method))
        if any(one.method in methods and methods[one.method].unstable for one in crossings):
            axis.set_yscale("symlog")
        axis.set_title(f"{task} · {model}", fontsize=9, loc="left")

    caption = (
        "Relevance that crosses each layer boundary, a mean over samples: 0 is below the first block, the last above "
        "the last one. Where a method conserves, what is lost on the way down is what biases and softmax keep."
    )
    panels = [partial(draw, task=task, model=model) for task, model in panels_of]
    axes = ("boundary", "relevance")
    return [figure("boundaries", "Conservation by layer", caption, panels, min(ACROSS, len(panels)), axes, methods)]


def crossing_table(crossings: Sequence[Crossing], methods: Methods) -> Table:
    """A layer a row: what enters from above, what leaves below, what is kept, and what its neurons hold."""
    reasons = REASONS[: max(one.kept.shape[1] for one in crossings)]
    heads = ("from above", "to below", *(f"kept by {reason}" for reason in reasons), "unaccounted", "neurons")
    rows = []
    for one in crossings:
        for layer in reversed(range(len(one.kept))):
            above, below = one.boundaries[layer + 1], one.boundaries[layer]
            kept = np.zeros(len(reasons))
            kept[: one.kept.shape[1]] = one.kept[layer]
            numbers = (above, below, *kept, above - below - kept.sum(), one.neurons[layer])
            cells = tuple(Cell(round(float(value), 6) + 0.0) for value in numbers)
            rows.append(Row(one.task, (one.model, label(methods, one.method), str(layer)), cells))
    columns = tuple(Column("relevance", head, digits=3, signed=True) for head in heads)
    caption = "Means over samples of what crosses a block, of what it keeps, and of what its feed-forward neurons hold."
    return Table("boundaries", "Conservation by layer", caption, ("model", "method", "layer"), columns, tuple(rows))
