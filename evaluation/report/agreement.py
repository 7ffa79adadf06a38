"""Agreement of methods in the report: a map and a tree for each model and task."""

from __future__ import annotations

from collections.abc import Mapping

from evaluation.report.drawing import GREY, Grid, Line, Panel, Plot
from evaluation.report.page import Figure
from evaluation.report.results import Methods, label
from evaluation.report.table import Cell, Column, Entry, Table
from evaluation.scoring.agreement import MethodAgreement

Agreements = Mapping[tuple[str, str], MethodAgreement]  # by (model, task)
_ACROSS = 2

AGREEMENT = Table(
    "agreement",
    "Agreement of methods",
    "Spearman's rank correlation of two methods over the tokens of a sample, means over the samples of which both have "
    "an order. Methods that agree may be right or wrong together; occlusion is leave-one-out.",
    ("model", "method"),
)


def agreement_figures(agreements: Agreements, methods: Methods) -> list[Figure]:
    """Maps with methods in the order of their trees, and the trees."""
    maps: list[Grid] = []
    trees: list[Panel] = []
    for (model, task), one in agreements.items():
        order, branches = one.tree()
        at = [one.methods.index(name) for name in order]
        names = [label(methods, name) for name in order]
        maps.append(Grid(f"{model} · {task}", one.mean[at][:, at], names, names))
        lines = [Line("", distances, rows, {"color": GREY}) for rows, distances in branches]
        trees.append(Panel(f"{model} · {task}", lines, {"yticks": range(len(names)), "yticklabels": names}))
    of_map = "Mean rank correlation of two methods over the tokens of a sample; methods that agree stand side by side."
    of_tree = "Methods that join far left agree: the distance is 1 minus the mean correlation (average linkage)."
    plots = (
        Plot("agreement", "Which methods agree?", of_map, ("", ""), _ACROSS, alike=False),
        Plot("agreement_tree", "Families of methods", of_tree, ("1 − correlation", ""), _ACROSS, alike=False),
    )
    return [*plots[0].figures(maps, methods), *plots[1].figures(trees, methods)]


def agreement_table(agreements: Agreements, methods: Methods) -> Table:
    """A row and a column a method."""
    frame = []
    for (model, task), one in agreements.items():
        for row, name in enumerate(one.methods):
            for column, other in enumerate(one.methods):
                if row != column:
                    cell = Cell(float(one.mean[row, column]), n=one.n)
                    labels = (model, label(methods, name))
                    frame.append(Entry(task, labels, Column("", label(methods, other), digits=2), cell))
    return AGREEMENT.filled(frame)
