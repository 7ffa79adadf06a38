"""Controls in the report: verdicts on methods, and correlations of relevance under trained and random weights."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from closelook.evaluation.report.drawing import Curve, Plot, curve_panels
from closelook.evaluation.report.page import Figure
from closelook.evaluation.report.results import Methods, label, rank
from closelook.evaluation.report.table import UNDEFINED, Cell, Column, Entry, Table, fills, mean_cell, row_of
from closelook.evaluation.scoring.controls import (
    ARCHITECTURE,
    BAR,
    BY_DEPTH,
    BY_DEPTH_ABSOLUTE,
    CHANCE,
    RANDOMISED,
    SHAPLEY,
    SHAPLEY_ERROR,
    ControlRow,
)
from closelook.lrp_core.methods.records import PLANTED

PAGE = "controls.html"
PASSES, FAILS, TOO_FEW = "passes", "fails", "too few samples"
CAUGHT, NOT_CAUGHT = "caught", "not caught"  # of planted methods
_PLANTED_LABEL = ", planted"
_SAMPLES = Column("", "samples", digits=0)
_JUDGED = (
    Column("where all weights are random", "correlation", digits=2),
    Column("where all weights are random", "of absolute values", digits=2),
    Column("", "between two random models", digits=2),
    _SAMPLES,
    Column("", "verdict"),
)
_NEARNESS = Column("", "rank correlation", digits=2)
_ERROR = Column("", "error", digits=2)

NEAR_SHAPLEY = Table(
    "shapley",
    "Relevance beside exact Shapley values",
    "Exact Shapley values of the tokens of texts with at most ten tokens, computed from a forward pass for every "
    "subset of the tokens; an absent token has a zero embedding. Rank correlation: Spearman's, between relevance and "
    "Shapley values of a sample. Error: the squared difference that remains after relevance is scaled by the best "
    "non-negative factor, as a share of the squared Shapley values: 0 is a perfect match, 1 is no better than zero "
    "relevance. Means over samples with 95 % intervals. Samples are those with a rank correlation; relevance that is "
    "the same for all tokens has none. Values are of the target's logit minus the foil's, or of the target's logit "
    "without a foil. A comparison, not a verdict: absent tokens are one definition of relevance among several.",
    ("model", "method"),
    (_NEARNESS, _ERROR, _SAMPLES),
)


def named(methods: Methods, name: str) -> str:
    """The label of a method; that of a planted method says so."""
    return PLANTED[name].label + _PLANTED_LABEL if name in PLANTED else label(methods, name)


def verdicts(rows: Sequence[ControlRow]) -> dict[tuple[str, str, str], str]:
    """The name of the control that a method fails, or "" if it passes, by (model, task, method).

    Planted methods, and methods without a verdict, are left out.
    """
    failed = {}
    for row in rows:
        is_verdict = row.control in (RANDOMISED, CHANCE) and row.passed is not None
        if is_verdict and row.method not in PLANTED:
            failed[row.model, row.task, row.method] = "" if row.passed else row.control
    return failed


CONTROLS = Table(
    "controls",
    "Is relevance about the model?",
    "All weights of a model are replaced by random ones, and the same numbers are explained again: the logit "
    "of the right word (target) minus the logit of a wrong word (foil). An explanation of what the model has "
    "learnt must then change (Adebayo et al. 2018). Correlations are Spearman's over the tokens of a sample, "
    "between relevance under the trained and under the random model, as means over samples with 95 % "
    f"intervals. Verdict: a method fails if the whole interval of the signed correlation lies above {BAR}, or "
    "if it gives all tokens the same relevance, which counts as a correlation of 1. Random relevance is no "
    "explanation: it passes if its mean lies within the interval that holds 99.9 % of such means by chance. "
    "Planted methods, which do not use the model, show that the control works: it must catch them. A method "
    "that passes is not proven sound; the wider its interval, the less is shown. Between two random models: "
    "the correlation that the architecture alone causes; it decides no verdict.",
    ("model", "method"),
    _JUDGED,
)


@fills(CONTROLS)
def controls_table(rows: Sequence[ControlRow], methods: Methods) -> Iterator[Entry | str]:
    """The verdict on every method of each model and task; planted methods come last."""
    by_method: dict[tuple[str, str, str], dict[str, ControlRow]] = {}
    for row in rows:  # of controls by depth, the last row replaces the others: there, all weights are random
        if row.control not in (SHAPLEY, SHAPLEY_ERROR):
            by_method.setdefault((row.task, row.model, row.method), {})[row.control] = row
    planted_last = sorted(by_method, key=lambda key: (key[:2], key[2] in PLANTED, rank(methods, key[2])))
    for task, model, method in planted_last:
        controls = by_method[task, model, method]
        verdict = controls.get(RANDOMISED) or controls[CHANCE]
        passes, fails = (NOT_CAUGHT, CAUGHT) if method in PLANTED else (PASSES, FAILS)
        state = {None: TOO_FEW, True: passes, False: fails}[verdict.passed]
        numbers = [_cell(controls[name]) for name in (BY_DEPTH, BY_DEPTH_ABSOLUTE, ARCHITECTURE)]
        yield from row_of(
            task, (model, named(methods, method)), _JUDGED, (*numbers, Cell(verdict.n), Cell(state=state))
        )
    yield f" {summary(rows, methods)}"


@fills(NEAR_SHAPLEY)
def shapley_table(rows: Sequence[ControlRow], methods: Methods) -> Iterator[Entry]:
    """The nearness of every method to exact Shapley values; no rows if these were not computed."""
    for row in sorted(rows, key=lambda row: (row.task, row.model, row.method in PLANTED, rank(methods, row.method))):
        labels = (row.model, named(methods, row.method))
        if row.control == SHAPLEY:
            yield from row_of(row.task, labels, (_NEARNESS, _SAMPLES), (_cell(row), Cell(row.n)))
        elif row.control == SHAPLEY_ERROR:
            yield Entry(row.task, labels, _ERROR, _cell(row))


def summary(rows: Sequence[ControlRow], methods: Methods) -> str:
    """A sentence that names the methods of the run that fail, with models and tasks, and counts verdicts.

    Random relevance, which controls try even if the run lacks it, is not counted among the methods that pass.
    """
    by_cell = verdicts(rows)
    failed = {cell: control for cell, control in by_cell.items() if control}
    counted = {cell for cell in by_cell if cell[2] in methods and methods[cell[2]].family != "baseline"}
    fails_on: dict[str, list[str]] = {}
    for model, task, method in sorted(failed, key=lambda cell: rank(methods, cell[2])):
        fails_on.setdefault(named(methods, method), []).append(f"{model} · {task}")
    failures = "; ".join(f"{name} fails on {', '.join(cells)}" for name, cells in fails_on.items())
    passed = len(counted - failed.keys())
    subject = failures or "No method of the run fails"
    return f"{subject}; methods of the run pass in {passed} of {len(counted)} verdicts."


def controls_figure(rows: Sequence[ControlRow], methods: Methods, baseline: str | None) -> list[Figure]:
    """The correlation by depth: a panel for each model and task, a line for each method of the run."""
    by_curve: dict[tuple[str, str], list[ControlRow]] = {}
    for row in rows:
        if row.control == BY_DEPTH and row.method not in PLANTED:
            by_curve.setdefault((f"{row.model} · {row.task}", row.method), []).append(row)
    curves, depths = [], {}
    for (panel, method), by_depth in by_curve.items():
        means, low, high = zip(*((row.value, row.low, row.high) for row in by_depth), strict=True)
        curves.append(Curve(panel, method, range(len(means)), means, low, high))
        depths[panel] = _depth_ticks([row.detail for row in by_depth])
    panels = []
    for drawn in curve_panels(curves, methods, baseline, marker="o", markersize=3):
        names = depths[drawn.title]
        ticks = {"xticks": range(len(names)), "xticklabels": names, "ylim": (-1.05, 1.05)}
        panels.append(replace(drawn, axis=ticks))
    caption = (
        "Spearman's correlation between relevance under the trained model and relevance after the weights of some "
        "layers were replaced by random ones: those of the output layer (head), then also those of the blocks below "
        "it, down to the layer that the axis names. At the right end all weights are random; the table gives its "
        "verdict there. Bands are 95 % intervals over samples. A method whose line stays high hardly depends on what "
        "the model has learnt."
    )
    axes = ("random: all layers from the output down to", "correlation with trained model")
    return Plot("controls", "Relevance under random weights", caption, axes).figures(panels, methods)


def _depth_ticks(names: list[str]) -> list[str]:
    """The axis labels of depths: of more than four, all but the first and the last are empty, lest they overlap."""
    if len(names) <= 4:
        return names
    return [names[0], *[""] * (len(names) - 2), names[-1]]


def _cell(row: ControlRow) -> Cell:
    """The cell of a control's number, undefined without samples."""
    return mean_cell(row, otherwise=UNDEFINED)
