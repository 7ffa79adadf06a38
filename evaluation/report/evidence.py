"""Evidence against faithfulness: both sides of every method, and whether the two rankings agree."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from evaluation.report.drawing import POINT, Line, Panel, Plot, looks
from evaluation.report.faithfulness import DELTA, DIGITS, OF_SCORE, Drawn, ordered, summary_cell
from evaluation.report.page import Figure
from evaluation.report.results import Results, label
from evaluation.report.table import DONE, UNDEFINED_CELL, Cell, Column, Entry, Table
from evaluation.scoring.areas import Agreement
from evaluation.scoring.faithfulness import MEASURES, summarise
from evaluation.scoring.metrics import METRICS, lead


@dataclass(frozen=True)
class Point:
    """A method of one model and task: agreement with evidence, faithfulness, and cost in forwards of the sample."""

    method: str
    evidence: Cell
    delta: Cell
    forwards: float


@dataclass(frozen=True)
class Held:
    """The curves of a model and task held against the evidence of the same relevance on the same samples."""

    drawn: Drawn
    points: Sequence[Point]
    agreement: Agreement  # of the two rankings, random relevance left out

    @classmethod
    def of(cls, one: Drawn, results: Results, forwards: Mapping[str, float], resamples: int, seed: int) -> Held | None:
        """None where no method has both sides. `forwards` are the costs of methods."""
        if one.beside is None or not len(one.beside.evidence):
            return None
        at, points = {name: index for index, name in enumerate(one.beside.methods)}, []
        for method in ordered(one.beside.methods, results.methods):
            sides = (one.beside.evidence[:, at[method]], one.beside.delta[:, at[method]])
            ends = ((0.0, METRICS[lead()].scale), None)
            pairs = zip(sides, ends, strict=True)
            summaries = (summarise(values, resamples, seed, within, one.beside.clusters) for values, within in pairs)
            evidence, delta = map(summary_cell, summaries)
            points.append(Point(method, evidence, delta, forwards[method]))
        return cls(one, points, one.beside.agreement(results.baselines, resamples, seed))


def evidence_table(held: Sequence[Held], results: Results) -> Table:
    """Both sides of every method."""
    metric = METRICS[lead()]
    columns = (
        Column("", metric.label),
        Column("", MEASURES[DELTA].label, digits=DIGITS),
        Column("", "forwards", significant=3),
    )
    frame = []
    for one in held:
        for point in one.points:
            row = one.drawn.row(label(results.methods, point.method))
            for column, cell in zip(columns, (point.evidence, point.delta, Cell(point.forwards)), strict=True):
                frame.append(Entry(*row, column, cell))
    return Table(
        "evidence_faithfulness",
        "Evidence against faithfulness",
        f"How often a method's most relevant token is evidence ({metric.label}, {metric.unit}), how faithful the same "
        "relevance is on the same samples, predicted correctly (ΔA), and what it costs in forwards of the sample, a "
        "backward counted as one. 95 % intervals.",
        ("model", "method"),
        columns,
    ).filled(frame)


def agreement_table(held: Sequence[Held]) -> Table:
    """The rank correlation of each model and task, with its interval and the number of methods."""
    frame = [entry for one in held for entry in correlated(one.drawn.task, (one.drawn.setting(),), one.agreement)]
    return Table(
        "evidence_faithfulness_ranks",
        "Do both rankings agree?",
        "Spearman's rank correlation of methods by evidence and by faithfulness, of the same relevance on the same "
        "samples: 1 where both order them alike, random relevance left out. 95 % bootstrap intervals over samples.",
        ("model",),
    ).filled(frame)


def correlated(task: str, labels: tuple[str, ...], value: Agreement) -> Iterator[Entry]:
    """A row of a table of rank correlations: the correlation, and the methods and samples that it is of."""
    cell = UNDEFINED_CELL
    if not math.isnan(value.value):
        cell = Cell(value.value, DONE, value.n, value.low, value.high)
    yield Entry(task, labels, Column("", "rank correlation", digits=DIGITS), cell)
    yield Entry(task, labels, Column("", "methods", digits=0), Cell(value.methods))
    yield Entry(task, labels, Column("", "samples", digits=0), Cell(value.n))


def _panel_of(one: Held, held: Sequence[Held]) -> str:
    """The model of a panel, and the way in which tokens go where there are several of it."""
    drawn = one.drawn
    alike = (other.drawn for other in held if (other.drawn.model, other.drawn.task) == (drawn.model, drawn.task))
    several = len({other.perturbation for other in alike}) > 1
    return drawn.setting() if several else drawn.model + OF_SCORE[drawn.score]


def evidence_figure(held: Sequence[Held], results: Results) -> list[Figure]:
    """Every method a point: evidence found against faithfulness, a panel a model and task; none without points."""
    look = looks({point.method for one in held for point in one.points}, results.methods, results.baseline)
    panels = []
    for one in held:
        lines = []
        for point in one.points:
            x, y = point.evidence, point.delta
            at = (x.value or 0.0, y.value or 0.0)
            thin = {"linewidth": 0.9}
            bars = [
                ([x.low or 0, x.high or 0], [at[1], at[1]], thin),
                ([at[0], at[0]], [y.low or 0, y.high or 0], thin),
            ]
            size = {"markersize": 4 + 1.6 * math.log2(1 + point.forwards), "alpha": 0.85}
            drawn_point = look[point.method] | POINT | size
            lines.append(Line(label(results.methods, point.method), at[:1], at[1:], drawn_point, bars=bars))
        value = one.agreement.value
        rho = "" if math.isnan(value) else f" · ρ = {value:.2f}"
        panels.append(Panel(f"{_panel_of(one, held)} · {one.drawn.task}{rho}", lines, {"xlim": (-4, 104)}))
    metric = METRICS[lead()]
    caption = (
        "Each point is a method; its size grows with its cost in forwards, lines are 95 % intervals. "
        f"{metric.label} tells how often the most relevant token is evidence. ρ is the rank correlation of the two "
        "rankings, random relevance left out; its interval stands in the table."
    )
    axes = (f"evidence: {metric.label}, {metric.unit}", "faithfulness: ΔA")
    plot = Plot("evidence_faithfulness", "Evidence against faithfulness", caption, axes)
    return plot.figures(panels, results.methods)
