"""Evidence against faithfulness: both sides of every method, and whether the two rankings agree."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from evaluation.report.drawing import POINT, Line, Panel, Plot, looks
from evaluation.report.faithfulness import DELTA, DIGITS, Drawn, area_cell, ordered
from evaluation.report.page import Figure
from evaluation.report.results import Place, Results, label
from evaluation.report.table import DONE, Cell, Column, Entry, Table, interval_of, known
from evaluation.scoring.areas import rank_correlation
from evaluation.scoring.faithfulness import MEASURES
from evaluation.scoring.metrics import METRICS, lead


@dataclass(frozen=True)
class Point:
    """A method of one model and task: agreement with evidence, faithfulness, and cost in forwards of the sample."""

    method: str
    evidence: Cell
    delta: Cell
    forwards: float


def points(one: Drawn, results: Results, forwards: Mapping[str, float]) -> list[Point]:
    """Methods that have both sides; not those whose relevance in the setting of table 1 is nothing but rounding.

    `forwards` are the costs of methods.
    """
    compared = results.comparisons.get((one.model, one.task, one.dtype))
    both = []
    if compared is None:
        return []
    for method in ordered(one.areas.variants, results.methods):
        noise = results.is_noise(Place(one.model, one.task, one.dtype, method))
        at = compared.at(method, lead())
        delta = area_cell(one, method, DELTA)
        if at is not None and not noise and delta.value is not None:
            low, high = interval_of(compared, method, lead())
            evidence = Cell(float(compared.mean[at]), DONE, compared.n, low, high)
            both.append(Point(method, evidence, delta, forwards[method]))
    return both


def evidence_table(drawn: Sequence[Drawn], points_of: Sequence[Sequence[Point]], results: Results) -> Table:
    """Both sides of every method; `points_of` are those of each of `drawn`."""
    metric = METRICS[lead()]
    columns = (
        Column("", metric.label),
        Column("", MEASURES[DELTA].label, digits=DIGITS),
        Column("", "forwards", significant=3),
    )
    frame = []
    for one, own in zip(drawn, points_of, strict=True):
        for point in own:
            row = one.row(label(results.methods, point.method))
            for column, cell in zip(columns, (point.evidence, point.delta, Cell(point.forwards)), strict=True):
                frame.append(Entry(*row, column, cell))
    return Table(
        "evidence_faithfulness",
        "Evidence against faithfulness",
        f"How often a method's most relevant token is evidence ({metric.label}, {metric.unit}, in the setting of "
        "table 1), how faithful it is (ΔA), and what it costs in forwards of the sample, a backward counted as one. "
        "95 % bootstrap intervals.",
        ("model", "method"),
        columns,
    ).filled(frame)


def agreement(of_methods: Sequence[Point]) -> float:
    """Spearman's rank correlation of methods by evidence and by faithfulness; NaN where there is none."""
    return rank_correlation([p.evidence.value or 0.0 for p in of_methods], [p.delta.value or 0.0 for p in of_methods])


def agreement_table(drawn: Sequence[Drawn], points_of: Sequence[Sequence[Point]]) -> Table:
    frame = []
    for one, own in zip(drawn, points_of, strict=True):
        row, value = (one.task, (one.setting(),)), agreement(own)
        correlation = Column("", "rank correlation", digits=DIGITS)
        frame.append(Entry(*row, correlation, known(None if math.isnan(value) else value)))
        frame.append(Entry(*row, Column("", "methods", digits=0), Cell(len(own))))
    return Table(
        "evidence_faithfulness_ranks",
        "Do both rankings agree?",
        "Spearman's rank correlation of methods by evidence and by faithfulness: 1 where both order them alike.",
        ("model",),
    ).filled(frame)


def evidence_figure(drawn: Sequence[Drawn], points_of: Sequence[Sequence[Point]], results: Results) -> list[Figure]:
    """Every method a point: evidence found against faithfulness, a panel a model and task; none without points."""
    look = looks({point.method for own in points_of for point in own}, results.methods, results.baseline)
    panels = []
    for one, own in zip(drawn, points_of, strict=True):
        lines = []
        for point in own:
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
        value = agreement(own)
        rho = "" if math.isnan(value) else f" · ρ = {value:.2f}"
        if lines:
            panels.append(Panel(f"{one.model} · {one.task}{rho}", lines, {"xlim": (-4, 104)}))
    metric = METRICS[lead()]
    caption = (
        "Each point is a method; its size grows with its cost in forwards, lines are 95 % intervals. "
        f"{metric.label} tells how often the most relevant token is evidence. ρ is the rank correlation of the two "
        "rankings."
    )
    axes = (f"evidence: {metric.label}, {metric.unit}", "faithfulness: ΔA")
    plot = Plot("evidence_faithfulness", "Evidence against faithfulness", caption, axes)
    return plot.figures(panels, results.methods)
