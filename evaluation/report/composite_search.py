"""The search among composites: each rule of a group of layers over all that were tried with it (AttnLRP's figures 12 to
16), and the best of each method (its table 4)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from evaluation.report.drawing import COLOURS, POINT, Bar, Line, Panel, Plot
from evaluation.report.faithfulness import DELTA
from evaluation.report.page import Figure
from evaluation.report.results import Methods, label
from evaluation.report.table import Cell, Column, Entry, Table
from evaluation.scoring.faithfulness import MEASURES
from lrp_core.composites import FIGURES, RULES, Spec


@dataclass(frozen=True)
class Search:
    """The composites that a method was tried under for one model, task and precision."""

    model: str
    task: str
    dtype: str
    method: str
    trials: Sequence[tuple[Spec, float]]  # each with its mean area difference
    chosen: Spec

    def by_rule(self, group: str) -> dict[str, list[float]]:
        """The area differences of all composites with each rule of a group of layers."""
        deltas: dict[str, list[float]] = {}
        for spec, delta in self.trials:
            deltas.setdefault(str(spec.rule(group)), []).append(delta)
        return deltas


def search_figures(searches: Sequence[Search], methods: Methods) -> list[Figure]:
    """A figure for each group of layers that several rules were tried on, a panel a model, task and method."""
    figures = []
    area = MEASURES[DELTA].label
    for group, number in FIGURES.items():
        shown = [one for one in searches if len(one.by_rule(group)) > 1]
        rules = list(dict.fromkeys(rule for one in shown for rule in one.by_rule(group)))
        limits = {"xticks": [], "xlim": (-0.6, len(rules) - 0.4)}
        panels = []
        for one in shown:
            lines = [_line(rule, rules.index(rule), values) for rule, values in one.by_rule(group).items()]
            panels.append(Panel(f"{one.task} · {one.model} · {label(methods, one.method)}", lines, limits))
        caption = (
            f"{area} of every composite that was tried, by its rule for layers of the group {group}: "
            "the line is from the least to the largest, thick between the quartiles, and the point is the median. "
            f"AttnLRP's figure {number}."
        )
        plot = Plot(f"composites_{group}", f"Rules of {group.replace('_', ' ')} layers", caption, ("rule", area))
        figures += plot.figures(panels, methods)
    return figures


def _line(rule: str, at: int, values: Sequence[float]) -> Line:
    """A point at the median, and bars between the ends and between the quartiles."""
    low, q1, median, q3, high = np.quantile(values, (0, 0.25, 0.5, 0.75, 1))
    bars: list[Bar] = [([at, at], [low, high], {"linewidth": 1}), ([at, at], [q1, q3], {"linewidth": 6, "alpha": 0.5})]
    return Line(rule, [at], [median], POINT | {"color": COLOURS[at % len(COLOURS)]}, bars=bars)


BEST = Table(
    "composites_best",
    "The best composites",
    "The rule of each group of layers in the composite with the largest ΔA of all that were tried (AttnLRP's table "
    "4, whose body is lost; `composite: vit` is what its figures say of vision transformers). `epsilon` and "
    "`identity` stand where a composite says nothing, and are then the method's own rule.",
    ("model", "layers"),
)


def best_table(searches: Sequence[Search], methods: Methods) -> Table:
    """A group of layers a row, a method a column: the rules of the composite that was chosen."""
    frame = []
    for one in searches:
        for group in RULES:
            labels, rule = (f"{one.model}, {one.dtype}", group.replace("_", " ")), one.chosen.rule(group)
            frame.append(Entry(one.task, labels, Column("", label(methods, one.method)), Cell(state=str(rule))))
    return BEST.filled(frame)
