"""Faithfulness as areas under the curves of perturbed inputs: the forms of AttnLRP's tables 1 and 6 to 8, and its
figure 4."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from evaluation.report.drawing import Line, Panel, Plot, looks
from evaluation.report.page import Figure
from evaluation.report.papers import attnlrp
from evaluation.report.pruning import span
from evaluation.report.results import Methods, Results, label
from evaluation.report.table import (
    BOLD,
    DONE,
    MISSING,
    NOISE,
    NOT_FINITE,
    UNDEFINED,
    UNSEEN,
    Cell,
    Column,
    Entry,
    Table,
    difference_cell,
    known,
    of_group,
    smallest_told,
)
from evaluation.scoring.areas import AREAS, GRID, Areas, Beside, MeanCurve
from evaluation.scoring.faithfulness import MEASURES, Summary
from evaluation.scoring.flips import CONTRAST, TARGET_LOGIT
from evaluation.scoring.metrics import METRICS, overlap
from evaluation.scoring.statistics import TEST, holm_adjusted
from lrp_core.kinds import RESAMPLE

DELTA, MORF, LERF = AREAS
_OPPOSITE = {DELTA: DELTA, MORF: LERF, LERF: MORF}
DIGITS, OVERLAP_DIGITS = 2, 3  # as the paper prints them
PAPER = "AttnLRP"
WAYS = {
    "zero": "zeroed",
    "black": "black before normalisation",
    "mask": "masked",
    "delete": "deleted",
    "resample": "resampled",
}
RESAMPLED = (
    " In place of a resampled token stands another one, drawn from those that follow the same left neighbour in the "
    "task's texts; curves are means over several draws, and a prediction is correct where more than half of them are."
)
OF_SCORE = {TARGET_LOGIT: "", CONTRAST: ", target − foil"}
_FILE = {TARGET_LOGIT: "", CONTRAST: "_contrast"}
FOLLOWED = {TARGET_LOGIT: "logit of the target", CONTRAST: "logit of the target minus that of the foil"}
PANELS = {"morf": "most relevant first", "lerf": "least relevant first", "delta": "difference"}
NOT_DRAWN = "No curves are drawn: set `perturb` in the config and run `closelook perturb`."
_INVERTED = (
    " Inverted is the same relevance with its sign reversed (AttnLRP B.5): MoRF and LeRF change roles. It is no "
    "method of its own, so it is not ranked."
)


@dataclass(frozen=True)
class Setting:
    """The setting of curves within a task: the model, and the way in which tokens go."""

    model: str
    task: str
    dtype: str
    perturbation: str

    def setting(self) -> str:
        return f"{self.model}, {WAYS[self.perturbation]}"


@dataclass(frozen=True)
class Drawn(Setting):
    """The curves of one model, task and perturbation."""

    areas: Areas
    curves: Mapping[str, Mapping[str, MeanCurve]]  # by method and order; "delta" is their difference
    lacking: Sequence[str] = ()  # methods whose curves are wanted and not drawn
    noise: Sequence[str] = ()  # methods whose curves follow nothing but rounding: they have no areas here
    overlap: Mapping[str, Summary] = field(default_factory=dict)  # IoU of evidence and the same relevance, by method
    beside: Beside | None = None  # evidence of the same relevance on the same samples
    published: str | None = None  # the model in AttnLRP's tables
    bases: Mapping[str, str] = field(default_factory=dict)  # what configured methods are called there, by name
    score: str = TARGET_LOGIT  # the number that is followed

    def setting(self) -> str:
        return super().setting() + OF_SCORE[self.score]

    @property
    def methods(self) -> list[str]:
        return [*self.areas.variants, *self.lacking, *self.noise]

    def row(self, name: str) -> tuple[str, tuple[str, ...]]:
        """The section and the labels of a table's row."""
        return self.task, (self.setting(), name)


class Shown(NamedTuple):
    """A row's content: a method, or its relevance with the sign reversed, whose MoRF is the method's LeRF."""

    method: str
    inverted: bool = False

    def label(self, methods: Methods) -> str:
        return label(methods, self.method) + ", inverted" * self.inverted


def _area_column(measure: str, group: str = "") -> Column:
    record = MEASURES[measure]
    return Column(group, record.label, digits=DIGITS)


_LEFT_OUT = Column("", "left out", digits=0)
FAITHFULNESS = Table(
    "faithfulness",
    "Areas under faithfulness curves",
    "The target's logit, or where the row says so that minus the foil's, as tokens go, the most relevant first "
    "(MoRF) or the least (LeRF), in the order of relevance that explains the same number: that of token embeddings "
    "without positions, which stay, or of the sum of pixels, where the run has it. By trapezoids over "
    "the share of tokens that are gone; ΔA is LeRF minus MoRF (AttnLRP, equation 31). Means over samples with "
    f"95 % intervals. {BOLD} Stars on ΔA: it differs from zero, * p < 0.05, ** p < 0.01 (sign-flip test, Holm over the "
    "table). Random relevance has a ΔA of zero, since LeRF is MoRF reversed, and in either order the mean area of two "
    f"random orders a sample. Left out are samples whose relevance or logits are not finite. {UNSEEN}",
    ("model", "method"),
    paper=PAPER,
)


def areas_table(drawn: Sequence[Drawn], results: Results) -> Table:
    """A method a row, its three areas with intervals, as AttnLRP's tables 6 to 8; inverted methods follow their own."""
    note = _inverted_note(drawn, results) + note_of({one.perturbation for one in drawn})
    return FAITHFULNESS.filled(_areas(drawn, results), note)


def note_of(ways: Collection[str]) -> str:
    """The sentence of a caption about those of `ways` that a word does not explain."""
    return RESAMPLED if RESAMPLE in ways else ""


def _areas(drawn: Sequence[Drawn], results: Results) -> Iterator[Entry]:
    p = against_zero(drawn)
    for at, one in enumerate(drawn):
        for shown in _shown(one.methods, results.methods):
            method, inverted = shown
            tested = method in one.areas.variants
            if inverted and not tested:
                continue
            row = one.row(shown.label(results.methods))
            for measure in AREAS:
                cell = area_cell(one, method, measure, inverted=inverted)
                if measure == DELTA and cell.value is not None:
                    cell = replace(cell, p=p.get((at, method)))
                yield Entry(*row, _area_column(measure), cell)
            summary = one.areas.summaries.get((method, DELTA))
            yield Entry(*row, _LEFT_OUT, known(None if summary is None else summary.left_out))
        columns = {measure: _area_column(measure) for measure in AREAS}
        yield from smallest_told(one.task, (one.setting(),), columns, one.areas.comparison)


def overview_table(drawn: Sequence[Drawn], results: Results) -> Table:
    """ΔA and overlap with evidence, a method a row and two columns for each model and task, as AttnLRP's table 1.

    Numbers of the paper's models that are not among those of `drawn` stand in columns of their own.
    """
    iou = METRICS[overlap()].label
    without = [name for name in dict.fromkeys(one.task for one in drawn) if results.tasks[name].evidence is None]
    lacks = f" {' and '.join(without)}: no evidence, hence no {iou}." if without else ""
    return Table(
        "faithfulness_overview",
        "Faithfulness of every method",
        f"{MEASURES[DELTA].label} is that of the table below; {iou} is the overlap of the evidence and as many tokens "
        "of the same relevance, the largest, over their union: a mean over correctly predicted samples, among the "
        "tokens that other tables count. Larger is better in both."
        + lacks
        + f" Columns named {PAPER} are the paper's own models.",
        ("method",),
        paper=PAPER,
    ).filled(_overview(drawn, results), _inverted_note(drawn, results))


def _overview(drawn: Sequence[Drawn], results: Results) -> Iterator[Entry]:
    own = {(one.task, one.published) for one in drawn}
    methods = {method for one in drawn for method in one.methods}
    printed = {}
    for task, model in dict.fromkeys(key[:2] for key in attnlrp()):
        group = f"{PAPER}: {task} · {model}"
        for measure, column in ((DELTA, _area_column(DELTA, group)), (overlap(), _overlap_column(group))):
            if (task, model) not in own and any((task, model, name, measure) in attnlrp() for name in methods):
                printed[task, model, measure] = column
    for shown in _shown(methods, results.methods):
        method, inverted = shown
        row = ("", (shown.label(results.methods),))
        for one in drawn:
            group = f"{one.task} · {one.setting()}"
            yield Entry(*row, _area_column(DELTA, group), area_cell(one, method, DELTA, inverted=inverted))
            yield Entry(*row, _overlap_column(group), _overlap_cell(one, shown))
        for (task, model, measure), column in printed.items():
            value = None if inverted else attnlrp().get((task, model, method, measure))
            yield Entry(*row, column, known(value))


def pairs_table(drawn: Sequence[Drawn], results: Results) -> Table:
    """ΔA of every method minus that of every other, on the same samples."""
    methods = results.methods
    every = ordered({method for one in drawn for method in one.methods}, methods)
    columns = {name: Column("minus", label(methods, name), signed=True, digits=DIGITS) for name in every}
    frame = []
    for one in drawn:
        for method in ordered(one.methods, methods):
            for other, column in columns.items():
                cell = _difference(one, method, other)
                frame.append(Entry(*one.row(label(methods, method)), column, cell))
    return Table(
        "faithfulness_pairs",
        "Faithfulness, methods against each other",
        f"ΔA of the row's method minus the column's, on samples that all have. * p < 0.05, ** p < 0.01: {TEST}.",
        ("model", "method"),
    ).filled(frame)


def against_zero(drawn: Sequence[Drawn]) -> dict[tuple[int, str], float]:
    """p values of ΔA, adjusted by Holm's method over all of them, by (index into `drawn`, method)."""
    tested = [(at, method) for at, one in enumerate(drawn) for method in one.areas.p_zero]
    adjusted = holm_adjusted([drawn[at].areas.p_zero[method] for at, method in tested])
    return dict(zip(tested, adjusted, strict=True))


def area_cell(one: Drawn, method: str, measure: str, *, inverted: bool = False) -> Cell:
    """An area of a method; with `inverted` that of the opposite relevance, which takes the same tokens in the other
    order: nothing is computed for it.
    """
    summary = one.areas.summaries.get((method, _OPPOSITE[measure] if inverted else measure))
    if summary is None:
        return Cell(state=NOISE if method in one.noise else MISSING if method in one.lacking else UNDEFINED)
    if not inverted:
        cell = summary_cell(summary, _printed(one, method, measure))
        return of_group(cell, one.areas.comparison, method, measure, MEASURES[measure].higher_is_better)
    if measure == DELTA:
        summary = replace(summary, value=-summary.value, low=-summary.high, high=-summary.low)
    return summary_cell(summary)


def ordered(names: Collection[str], methods: Methods) -> list[str]:
    return sorted(names, key=lambda name: (methods[name].order, name))


def _shown(names: Collection[str], methods: Methods) -> list[Shown]:
    """Each method, and behind it the opposite of those whose records ask for it."""
    rows = []
    for name in ordered(names, methods):
        rows.append(Shown(name))
        if methods[name].inverted:
            rows.append(Shown(name, inverted=True))
    return rows


def _inverted_note(drawn: Sequence[Drawn], results: Results) -> str:
    inverted = (results.methods[name].inverted for one in drawn for name in one.areas.variants)
    return _INVERTED if any(inverted) else ""


def _overlap_column(group: str) -> Column:
    return Column(group, METRICS[overlap()].label, digits=OVERLAP_DIGITS)


def _overlap_cell(one: Drawn, row: Shown) -> Cell:
    summary = None if row.inverted else one.overlap.get(row.method)
    if summary is not None:
        return summary_cell(summary, _printed(one, row.method, overlap()))
    return Cell(state=NOISE if row.method in one.noise and one.overlap else UNDEFINED)


def _printed(one: Drawn, method: str, measure: str) -> float | None:
    """The paper's number for the same model."""
    return attnlrp().get((one.task, one.published or "", one.bases.get(method, method), measure))


def summary_cell(summary: Summary, reference: float | None = None) -> Cell:
    """A mean with its interval, where it has one."""
    if not summary.n or math.isnan(summary.value):
        return Cell(state=NOT_FINITE, reference=reference)
    low, high = (None, None) if math.isnan(summary.low) else (summary.low, summary.high)
    return Cell(summary.value, DONE, summary.n, low, high, reference=reference)


def _difference(one: Drawn, method: str, other: str) -> Cell:
    noise = method != other and not {method, other}.isdisjoint(one.noise)
    return difference_cell(one.areas.comparison, method, other, DELTA, Cell(state=NOISE if noise else UNDEFINED))


def curve_figures(drawn: Sequence[Drawn], results: Results) -> list[Figure]:
    """A figure for each task and perturbation: a row a model, with MoRF, LeRF and their difference."""
    figures = []
    for task, way, score in dict.fromkeys((one.task, one.perturbation, one.score) for one in drawn if one.curves):
        own = [one for one in drawn if (one.task, one.perturbation, one.score) == (task, way, score)]
        look = looks({method for one in own for method in one.curves}, results.methods, results.baseline)
        panels = []
        counts = set()
        for one in own:
            for order, title in PANELS.items():
                lines = []
                for method, curves in one.curves.items():
                    curve = curves[order]
                    counts.add(curve.n)
                    name = label(results.methods, method)
                    lines.append(Line(name, GRID, curve.mean, look[method], curve.low, curve.high))
                if lines:
                    panels.append(Panel(f"{one.model} · {title}", lines))
        caption = (
            f"Mean {FOLLOWED[score]} over {span(counts)} samples as tokens go ({WAYS[way]}), with 95 % intervals: "
            "lower is better where the most relevant go first, higher where the least do; the area of the difference "
            "is ΔA."
        ) + note_of([way])
        axes = ("share of tokens that are gone", "logit")
        plot = Plot(f"faithfulness_{task}_{way}{_FILE[score]}", f"Faithfulness, {task}{OF_SCORE[score]}", caption, axes)
        figures += plot.figures(panels, results.methods)
    return figures
