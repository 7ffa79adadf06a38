"""Controls in the report: which methods fail, and how much of relevance outlives random weights."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from evaluation.report.drawing import Line, Panel, Plot, looks
from evaluation.report.page import Figure
from evaluation.report.results import Methods, label, rank
from evaluation.report.table import UNDEFINED_CELL, Cell, Column, Entry, Table
from evaluation.scoring.controls import (
    ARCHITECTURE,
    BAR,
    BY_DEPTH,
    BY_DEPTH_ABSOLUTE,
    CHANCE,
    RANDOMISED,
    REWRITTEN,
    SHAPLEY,
    SHAPLEY_ERROR,
    ControlRow,
)
from lrp_core.methods.planted_records import PLANTED

PAGE = "controls.html"
PASSES, FAILS, TOO_FEW = "passes", "fails", "too few samples"
CAUGHT, NOT_CAUGHT = "caught", "not caught"  # planted methods
_PLANTED_LABEL = ", planted"
_CORRELATION = Column("where all weights are random", "correlation", digits=2)
_ABSOLUTE = Column("where all weights are random", "of absolute values", digits=2)
_BETWEEN = Column("", "between two random models", digits=2)
_SAMPLES, _VERDICT = Column("", "samples", digits=0), Column("", "verdict")

CONTROLS = Table(
    "controls",
    "Is relevance about the model?",
    "The weights of a model are drawn anew, from the head down to the embeddings (Adebayo et al. 2018), and the same "
    "target and foil are explained. Spearman's correlation of a sample's relevance with that under the trained model, "
    f"means with 95 % intervals: a method fails where the interval lies above {BAR}, or where it says the same of all "
    "tokens. Random relevance passes where its mean lies within the range of chance (99.9 %). Planted methods know "
    "nothing of the model and must be caught. To pass is not to be proven sound: of few samples intervals are wide. "
    "The correlation between two random models is what the architecture alone decides; it is no bar.",
    ("model", "method"),
    (_CORRELATION, _ABSOLUTE, _BETWEEN, _SAMPLES, _VERDICT),
)

_NEARNESS = Column("", "rank correlation", digits=2)
_ERROR = Column("", "error", digits=2)

NEAR_SHAPLEY = Table(
    "shapley",
    "Relevance beside exact Shapley values",
    "Texts of at most ten tokens, all sets of which are run: a token that is absent has a zero embedding. Spearman's "
    "correlation of relevance with the exact values, and the error that is left after scaling, the sum of (b R - S)² "
    "over that of S² with the b ≥ 0 that makes it least; means over samples with 95 % intervals. Methods that explain "
    "neither target nor foil are held against the contrast, and without foils against the target.",
    ("model", "method"),
    (_NEARNESS, _ERROR, _SAMPLES),
)

MOVED = Table(
    "rewritten",
    "Relevance where other weights compute the same function",
    "Heads or neurons change places, neurons are scaled and scaled back, the weights of norms are folded into the "
    "layers behind them, values are rotated and rotated back. The largest change of a token's relevance, as a share of "
    "its sample's largest relevance, over all samples. Rounding alone moves what explains the function; rules of "
    "propagation explain a way to compute it, and may move. A dash: the model's layers do not allow it.",
    ("model", "method"),
)


def named(methods: Methods, name: str) -> str:
    """The label of a method; a planted one says so."""
    return PLANTED[name].label + _PLANTED_LABEL if name in PLANTED else label(methods, name)


def verdicts(rows: Sequence[ControlRow]) -> dict[tuple[str, str, str], str]:
    """The control that a method of the run fails, "" of one that passes, by model, task and method."""
    return {
        (row.model, row.task, row.method): "" if row.passed else row.control
        for row in rows
        if row.control in (RANDOMISED, CHANCE) and row.passed is not None and row.method not in PLANTED
    }


def controls_table(rows: Sequence[ControlRow], methods: Methods) -> Table:
    """The verdict on every method of each model and task, planted ones last."""
    by_method: dict[tuple[str, str, str], dict[str, ControlRow]] = {}
    for row in rows:  # of those that go by depth the last stays
        if row.control in (REWRITTEN, SHAPLEY, SHAPLEY_ERROR):
            continue
        by_method.setdefault((row.task, row.model, row.method), {})[row.control] = row
    frame = []
    for task, model, method in sorted(by_method, key=lambda key: (key[:2], key[2] in PLANTED, rank(methods, key[2]))):
        controls = by_method[task, model, method]
        verdict = controls.get(RANDOMISED) or controls[CHANCE]
        numbers = (controls[BY_DEPTH], controls[BY_DEPTH_ABSOLUTE], controls[ARCHITECTURE])
        passes, fails = (NOT_CAUGHT, CAUGHT) if method in PLANTED else (PASSES, FAILS)
        state = {None: TOO_FEW, True: passes, False: fails}[verdict.passed]
        cells = (*map(_cell, numbers), Cell(verdict.n), Cell(state=state))
        labels = (model, named(methods, method))
        frame += [Entry(task, labels, *entry) for entry in zip(CONTROLS.columns, cells, strict=True)]
    return CONTROLS.filled(frame, f" {summary(rows, methods)}")


def further_tables(rows: Sequence[ControlRow], methods: Methods) -> list[Table]:
    """Nearness to Shapley values, and changes under rewritten weights, where they were computed; no verdicts."""
    near, moved = [], []
    for row in sorted(rows, key=lambda row: (row.task, row.model, row.method in PLANTED, rank(methods, row.method))):
        labels = (row.model, named(methods, row.method))
        if row.control == SHAPLEY:
            near += [Entry(row.task, labels, _NEARNESS, _cell(row)), Entry(row.task, labels, _SAMPLES, Cell(row.n))]
        elif row.control == SHAPLEY_ERROR:
            near.append(Entry(row.task, labels, _ERROR, _cell(row)))
        elif row.control == REWRITTEN:
            percent = row._replace(value=100 * row.value)
            moved.append(Entry(row.task, labels, Column("", row.detail, significant=2, unit="%"), _cell(percent)))
    frames = ((NEAR_SHAPLEY, near), (MOVED, moved))
    return [table.filled(frame) for table, frame in frames if frame]


def summary(rows: Sequence[ControlRow], methods: Methods) -> str:
    """A sentence that names the methods of the run that fail, with models and tasks."""
    failed = {place: control for place, control in verdicts(rows).items() if control}
    asked = {(row.model, row.task, row.method) for row in rows if row.passed is not None and row.method not in PLANTED}
    places: dict[str, list[str]] = {}
    for model, task, method in sorted(failed, key=lambda key: rank(methods, key[2])):
        places.setdefault(named(methods, method), []).append(f"{model} · {task}")
    told = "; ".join(f"{name} fails on {', '.join(where)}" for name, where in places.items())
    if not told:
        return f"No method of the run fails, in {len(asked)} verdicts."
    return f"{told}. The other {len(asked) - len(failed)} verdicts are passed."


def controls_figure(rows: Sequence[ControlRow], methods: Methods, baseline: str | None) -> list[Figure]:
    """The correlation by depth: a panel a model and task, a line a method of the run."""
    shown = [row for row in rows if row.control == BY_DEPTH and row.method not in PLANTED]
    depths = {(row.model, row.task): _depths(shown, row.model, row.task) for row in shown}
    look = looks({row.method for row in shown}, methods, baseline)
    panels = []
    for (model, task), names in depths.items():
        lines = []
        for method in dict.fromkeys(row.method for row in shown if (row.model, row.task) == (model, task)):
            own = [row for row in shown if (row.model, row.task, row.method) == (model, task, method)]
            ends = ([row.low for row in own], [row.high for row in own])
            marks: Mapping[str, Any] = look[method] | {"marker": "o", "markersize": 3}
            line = Line(label(methods, method), range(len(own)), [row.value for row in own], marks, *ends)
            lines.append(line)
        ticks = {"xticks": range(len(names)), "xticklabels": names, "ylim": (-1.05, 1.05)}
        panels.append(Panel(f"{model} · {task}", lines, ticks))
    caption = (
        "Spearman's correlation of relevance with that under the trained model, as weights become random from the head "
        "down to the depth below the line's point; bands are 95 % intervals over samples. A method that stays high "
        "says little of what the model has learnt."
    )
    axes = ("weights are random from the head down to", "correlation with the trained")
    return Plot("controls", "Relevance under random weights", caption, axes).figures(panels, methods)


def _depths(rows: Sequence[ControlRow], model: str, task: str) -> list[str]:
    """The depths of a model and task, in order; only the ends of many."""
    names = list(dict.fromkeys(row.detail for row in rows if (row.model, row.task) == (model, task)))
    if len(names) <= 4:
        return names
    return [names[0], *[""] * (len(names) - 2), names[-1]]


def _cell(row: ControlRow) -> Cell:
    if not row.n or math.isnan(row.value):
        return UNDEFINED_CELL
    low, high = (None if math.isnan(end) else end for end in (row.low, row.high))
    return Cell(row.value, n=row.n, low=low, high=high)
