"""Agreement of methods in the report: a map and a tree for each model and task."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from closelook.evaluation.report.drawing import GREY, Grid, Line, Panel, Plot
from closelook.evaluation.report.page import Figure
from closelook.evaluation.report.results import Methods, label
from closelook.evaluation.report.table import Cell, Column, Entry, Table, fills
from closelook.evaluation.scoring.agreement import MethodAgreement

Agreements = Mapping[tuple[str, str], MethodAgreement]  # by (model, task)
_ACROSS = 2


def agreement_figures(agreements: Agreements, methods: Methods) -> list[Figure]:
    """A figure of correlation maps, whose methods are in the order of the trees, and a figure of the trees."""
    maps: list[Grid] = []
    trees: list[Panel] = []
    for (model, task), agreement in agreements.items():
        order, branches = agreement.tree()
        at = [agreement.methods.index(name) for name in order]
        names = [label(methods, name) for name in order]
        maps.append(Grid(f"{model} · {task}", agreement.mean[at][:, at], names, names))
        lines = [Line("", distances, rows, {"color": GREY}) for rows, distances in branches]
        trees.append(Panel(f"{model} · {task}", lines, {"yticks": range(len(names)), "yticklabels": names}))
    of_maps = "Mean rank correlation of two methods over the tokens of a sample; methods that agree stand side by side."
    of_trees = "Methods that join far left agree: the distance is 1 minus the mean correlation (average linkage)."
    map_plot = Plot("agreement", "Which methods agree?", of_maps, ("", ""), _ACROSS, alike=False)
    tree_axes = ("1 − correlation", "")
    tree_plot = Plot("agreement_tree", "Families of methods", of_trees, tree_axes, _ACROSS, alike=False)
    return [*map_plot.figures(maps, methods), *tree_plot.figures(trees, methods)]


AGREEMENT = Table(
    "agreement",
    "Agreement of methods",
    "Spearman's rank correlation between two methods over the tokens of a sample, averaged over the samples for "
    "which all methods order the tokens. Methods that agree may be right or wrong together. Occlusion is "
    "leave-one-out.",
    ("model", "method"),
)


@fills(AGREEMENT)
def agreement_table(agreements: Agreements, methods: Methods) -> Iterator[Entry]:
    """The table of the correlations of every two methods: a row and a column for each method."""
    for (model, task), agreement in agreements.items():
        columns = [Column("", label(methods, name), digits=2) for name in agreement.methods]
        for name, correlations in zip(agreement.methods, agreement.mean, strict=True):
            for column, other, value in zip(columns, agreement.methods, correlations, strict=True):
                if other != name:
                    yield Entry(task, (model, label(methods, name)), column, Cell(float(value), n=agreement.n))
