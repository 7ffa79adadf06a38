"""What a search among composites found: each rule of a group of layers over all that were tried with it (AttnLRP's
figures 12 to 16), and the best of each method (its table 4)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from matplotlib.axes import Axes

from evaluation.report.drawing import ACROSS, COLOURS, figure
from evaluation.report.faithfulness import DELTA
from evaluation.report.page import Figure
from evaluation.report.results import Methods, label
from evaluation.report.table import UNDEFINED, Cell, Column, Row, Table
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

    def by_rule(self, group: str) -> Mapping[str, list[float]]:
        """The area differences of all composites with each rule of a group of layers."""
        deltas: dict[str, list[float]] = {}
        for spec, delta in self.trials:
            deltas.setdefault(str(spec.rule(group)), []).append(delta)
        return deltas


def search_figures(searches: Sequence[Search], methods: Methods) -> list[Figure]:
    """A figure for each group of layers that several rules were tried on, a panel a model, task and method."""
    figures = []
    for group, number in FIGURES.items():
        shown = [one for one in searches if len(one.by_rule(group)) > 1]
        if not shown:
            continue
        rules = list(dict.fromkeys(rule for one in shown for rule in one.by_rule(group)))
        panels = [partial(_draw, one=one, group=group, rules=rules, methods=methods) for one in shown]
        caption = (
            f"{MEASURES[DELTA].label} of every composite that was tried, by its rule for layers of the group {group}: "
            "the line is from the least to the largest, thick between the quartiles, and the point is the median. "
            f"AttnLRP's figure {number}."
        )
        axes = ("rule", MEASURES[DELTA].label)
        title = f"Rules of {group.replace('_', ' ')} layers"
        across = min(ACROSS, len(panels))
        figures.append(figure(f"composites_{group}", title, caption, panels, across, axes, methods))
    return figures


def _draw(axis: Axes, one: Search, group: str, rules: Sequence[str], methods: Methods) -> None:
    for at, rule in enumerate(rules):
        values = one.by_rule(group).get(rule)
        if values is None:
            continue
        colour = COLOURS[at % len(COLOURS)]
        low, q1, median, q3, high = np.quantile(values, (0, 0.25, 0.5, 0.75, 1))
        axis.vlines([at], [low], [high], color=colour, linewidth=1)
        axis.vlines([at], [q1], [q3], color=colour, linewidth=6, alpha=0.5)
        axis.plot([at], [median], marker="o", linestyle="none", color=colour, label=rule)
    axis.set_xticks([])
    axis.set_xlim(-0.6, len(rules) - 0.4)
    axis.set_title(f"{one.task} · {one.model} · {label(methods, one.method)}", fontsize=9, loc="left")


def best_table(searches: Sequence[Search], methods: Methods) -> Table:
    """A group of layers a row, a method a column: the rules of the composite that was chosen."""
    names = list(dict.fromkeys(one.method for one in searches))
    columns = list(dict.fromkeys((one.task, one.model, one.dtype) for one in searches))
    chosen = {(one.task, one.model, one.dtype, one.method): one.chosen for one in searches}
    rows = [
        Row(
            task,
            (f"{model}, {dtype}", group.replace("_", " ")),
            tuple(_rule(chosen.get((task, model, dtype, name)), group) for name in names),
        )
        for task, model, dtype in columns
        for group in RULES
    ]
    return Table(
        "composites_best",
        "The best composites",
        "The rule of each group of layers in the composite with the largest ΔA of all that were tried (AttnLRP's table "
        "4, whose body is lost; `composite: vit` is what its figures say of vision transformers). `epsilon` and "
        "`identity` stand where a composite says nothing, and are then the method's own rule.",
        ("model", "layers"),
        tuple(Column("", label(methods, name)) for name in names),
        tuple(rows),
    )


def _rule(spec: Spec | None, group: str) -> Cell:
    return Cell(state=UNDEFINED if spec is None else str(spec.rule(group)))
