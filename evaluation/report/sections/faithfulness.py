"""Faithfulness as areas under deletion curves, in the forms of AttnLRP's tables 1 and 6 to 8, and its figure 4."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import NamedTuple

from closelook.evaluation.report.drawing import Curve, Plot, curve_panels
from closelook.evaluation.report.page import Figure
from closelook.evaluation.report.results import Methods, Results, attnlrp, label, ordered
from closelook.evaluation.report.sections.pruning import span
from closelook.evaluation.report.table import (
    BOLD,
    UNDEFINED,
    UNSEEN,
    Cell,
    Column,
    Entry,
    Table,
    fills,
    known,
    marked_if_best,
    mean_cell,
    smallest_differences,
)
from closelook.evaluation.scoring.faithfulness.areas import AREAS, GRID, Areas, JointScores, MeanCurve
from closelook.evaluation.scoring.faithfulness.flips import CONTRAST, TARGET_LOGIT
from closelook.evaluation.scoring.faithfulness.scores import MEASURES, Summary
from closelook.evaluation.scoring.faithfulness.shares import Shares
from closelook.evaluation.scoring.metrics import METRICS, overlap
from closelook.evaluation.scoring.statistics import holm_adjusted
from closelook.lrp_core.records.kinds import RESAMPLE

DELTA, MORF, LERF = AREAS
_OPPOSITE = {DELTA: DELTA, MORF: LERF, LERF: MORF}
DIGITS, OVERLAP_DIGITS = 2, 3  # decimals, as the paper prints them
PAPER = "AttnLRP"
#: Perturbations in words: what happens to removed tokens.
WAYS = {
    "zero": "zeroed",
    "black": "black before normalisation",
    "mask": "masked",
    "delete": "deleted",
    "resample": "resampled",
}
RESAMPLED = (
    " A resampled token is replaced by a token drawn from those that follow the same left neighbour in the task's "
    "texts. Curves are means over several draws; a prediction is correct if it is correct in more than half of them."
)
OF_SCORE = {TARGET_LOGIT: "", CONTRAST: ", target − foil"}
_FILE = {TARGET_LOGIT: "", CONTRAST: "_contrast"}
FOLLOWED = {TARGET_LOGIT: "logit of the target", CONTRAST: "logit of the target minus that of the foil"}
PANELS = {"morf": "most relevant first", "lerf": "least relevant first", "delta": "difference"}
_INVERTED = (
    " Inverted is the same relevance with its sign reversed (AttnLRP B.5), so that MoRF and LeRF change roles. It is "
    "not a separate method, and is not ranked."
)


@dataclass(frozen=True)
class Setting:
    """The setting of curves: model, task, precision and perturbation."""

    model: str
    task: str
    dtype: str
    perturbation: str

    def setting(self) -> str:
        """The setting within a task, in words: the model and the perturbation."""
        return f"{self.model}, {WAYS[self.perturbation]}"


@dataclass(frozen=True, kw_only=True)
class MethodSet(Setting):
    """The numbers of all methods in a setting."""

    #: Methods whose relevance is, or may be, rounding error, with NOISE or NEAR_NOISE: they have no numbers.
    noise: Mapping[str, str] = field(default_factory=dict)
    published: str | None = None  # the name of the model in the paper's tables

    @property
    def numbers(self) -> Areas | Shares:
        """The numbers of the methods that have any."""
        raise NotImplementedError

    @property
    def methods(self) -> list[str]:
        """All methods of the setting, with or without numbers."""
        return [*self.numbers.variants, *self.noise]

    def row(self, name: str) -> tuple[str, tuple[str, ...]]:
        """The section and the labels of a table's row."""
        return self.task, (self.setting(), name)

    def cell(self, method: str, measure: str, reference: float | None) -> Cell:
        """The mean of a measure of a method, or the reason that there is none; `reference` is the paper's number."""
        summary = self.numbers.summaries.get((method, measure))
        if summary is None:
            return Cell(state=self.noise.get(method, UNDEFINED))
        cell, better = mean_cell(summary, reference), MEASURES[measure].higher_is_better
        return marked_if_best(cell, self.numbers.comparison, method, measure, better)


@dataclass(frozen=True)
class CurveSet(MethodSet):
    """The deletion curves of all methods in a setting, of the same score."""

    areas: Areas
    curves: Mapping[str, Mapping[str, MeanCurve]]  # by method and order; "delta" is the difference of the orders
    overlap: Mapping[str, Summary] = field(default_factory=dict)  # IoU of evidence and the same relevance, by method
    joint: JointScores | None = None  # evidence scores of the same relevance on the same samples
    #: Names in AttnLRP's tables, by name of the configured method.
    bases: Mapping[str, str] = field(default_factory=dict)
    score: str = TARGET_LOGIT  # the number that curves follow

    def setting(self) -> str:
        """The setting within a task, in words: the model, the perturbation, and the number that curves follow."""
        return super().setting() + OF_SCORE[self.score]

    @property
    def numbers(self) -> Areas:
        """The areas."""
        return self.areas


class ShownMethod(NamedTuple):
    """A method in a row of a table, or its relevance with the sign reversed, whose MoRF is the method's LeRF."""

    method: str
    inverted: bool = False

    def label(self, methods: Methods) -> str:
        """The label of the row."""
        return label(methods, self.method) + ", inverted" * self.inverted


def _area_column(measure: str, group: str = "") -> Column:
    """The column of an area."""
    return Column(group, MEASURES[measure].label, digits=DIGITS)


LEFT_OUT = Column("", "left out", digits=0)


FAITHFULNESS = Table(
    "faithfulness",
    "Areas under deletion curves",
    "A curve follows the target's logit, or where the row says so the target's logit minus the foil's, as tokens "
    "are removed: the most relevant first (MoRF) or the least relevant first (LeRF). Tokens are ranked by "
    "relevance that explains the same number. The relevance is that of token embeddings without positions, since "
    "positions stay, or for images the sum over pixels, if the run has it. Areas are taken by the trapezoidal rule "
    "over the share of removed tokens; ΔA is LeRF minus MoRF (AttnLRP, equation 31). Means over samples with "
    f"95 % intervals. {BOLD} Stars on ΔA: it differs from zero, * p < 0.05, ** p < 0.01 (sign-flip test, Holm over "
    "the table). Random relevance has a ΔA of zero, since LeRF is MoRF reversed; its areas are means over two "
    f"random orders a sample. Samples whose relevance or logits are not finite are left out. {UNSEEN}",
    ("model", "method"),
    paper=PAPER,
)


@fills(FAITHFULNESS)
def areas_table(curve_sets: Sequence[CurveSet], results: Results) -> Iterator[Entry | str]:
    """The three areas of every method with intervals, as AttnLRP's tables 6 to 8.

    A method is a row; its inverted relevance, if it has any, is the next one.
    """
    yield _inverted_note(curve_sets, results) + note_of({curve_set.perturbation for curve_set in curve_sets})
    p = against_zero(curve_sets)
    columns = {measure: _area_column(measure) for measure in AREAS}
    for at, curve_set in enumerate(curve_sets):
        for shown in _shown(curve_set.methods, results.methods):
            method, inverted = shown
            if inverted and method not in curve_set.areas.variants:
                continue
            row = curve_set.row(shown.label(results.methods))
            for measure, column in columns.items():
                cell = area_cell(curve_set, method, measure, inverted=inverted)
                if measure == DELTA and cell.value is not None:
                    cell = replace(cell, p=p.get((at, method)))
                yield Entry(*row, column, cell)
            summary = curve_set.areas.summaries.get((method, DELTA))
            yield Entry(*row, LEFT_OUT, known(None if summary is None else summary.left_out))
        yield from smallest_differences(curve_set.task, (curve_set.setting(),), columns, curve_set.areas.comparison)


def note_of(ways: Collection[str]) -> str:
    """The sentences of a caption that explain perturbations of `ways`; only resampling needs any."""
    return RESAMPLED if RESAMPLE in ways else ""


def overview_table(curve_sets: Sequence[CurveSet], results: Results) -> Table:
    """ΔA and overlap with evidence, as AttnLRP's table 1: a row for each method, two columns for each model and task.

    The paper's numbers of models that are not among those of `curve_sets` have columns of their own.
    """
    iou = METRICS[overlap()].label
    tasks = dict.fromkeys(curve_set.task for curve_set in curve_sets)
    without = [name for name in tasks if results.tasks[name].evidence is None]
    no_evidence = f" {' and '.join(without)}: no evidence, hence no {iou}." if without else ""
    return Table(
        "faithfulness_overview",
        "Faithfulness of every method",
        f"{MEASURES[DELTA].label} is that of the table below. {iou} is the intersection over union of the evidence and "
        "equally many tokens of the largest relevance, for the same relevance: a mean over correctly predicted samples "
        f"and the tokens that other tables count. Larger is better in both.{no_evidence} Columns named {PAPER} hold "
        f"the paper's numbers for its own models.{_inverted_note(curve_sets, results)}",
        ("method",),
        paper=PAPER,
    ).filled(_overview(curve_sets, results))


def _overview(curve_sets: Sequence[CurveSet], results: Results) -> Iterator[Entry]:
    """The cells of `overview_table`."""
    computed = {(curve_set.task, curve_set.published) for curve_set in curve_sets}
    methods = {method for curve_set in curve_sets for method in curve_set.methods}
    printed = {}
    for task, model in dict.fromkeys(key[:2] for key in attnlrp()):
        group = f"{PAPER}: {task} · {model}"
        for measure, column in ((DELTA, _area_column(DELTA, group)), (overlap(), _overlap_column(group))):
            if (task, model) not in computed and any((task, model, name, measure) in attnlrp() for name in methods):
                printed[task, model, measure] = column
    for shown in _shown(methods, results.methods):
        method, inverted = shown
        row = ("", (shown.label(results.methods),))
        for curve_set in curve_sets:
            group = f"{curve_set.task} · {curve_set.setting()}"
            yield Entry(*row, _area_column(DELTA, group), area_cell(curve_set, method, DELTA, inverted=inverted))
            yield Entry(*row, _overlap_column(group), _overlap_cell(curve_set, shown))
        for (task, model, measure), column in printed.items():
            value = None if inverted else attnlrp().get((task, model, method, measure))
            yield Entry(*row, column, known(value))


def against_zero(curve_sets: Sequence[CurveSet]) -> dict[tuple[int, str], float]:
    """p values of ΔA against zero by (index into `curve_sets`, method), adjusted by Holm's method over all of them."""
    tested = [(at, method) for at, curve_set in enumerate(curve_sets) for method in curve_set.areas.p_zero]
    adjusted = holm_adjusted([curve_sets[at].areas.p_zero[method] for at, method in tested])
    return dict(zip(tested, adjusted, strict=True))


def area_cell(curve_set: CurveSet, method: str, measure: str, *, inverted: bool = False) -> Cell:
    """The mean of an area of a method; with `inverted` that of its relevance with the sign reversed.

    Inverted relevance removes the same tokens in the opposite order, so that its areas follow from the method's.
    """
    summary = curve_set.areas.summaries.get((method, _OPPOSITE[measure]))
    if not inverted or summary is None:
        return curve_set.cell(method, measure, _printed(curve_set, method, measure))
    if measure == DELTA:
        summary = replace(summary, value=-summary.value, low=-summary.high, high=-summary.low)
    return mean_cell(summary)


def _shown(names: Collection[str], methods: Methods) -> list[ShownMethod]:
    """Every method, followed by its inverted relevance if its record asks for it."""
    rows = []
    for name in ordered(methods, names):
        rows.append(ShownMethod(name))
        if methods[name].inverted:
            rows.append(ShownMethod(name, inverted=True))
    return rows


def _inverted_note(curve_sets: Sequence[CurveSet], results: Results) -> str:
    """The sentences on inverted relevance, if a table shows any."""
    inverted = (results.methods[name].inverted for curve_set in curve_sets for name in curve_set.areas.variants)
    return _INVERTED if any(inverted) else ""


def _overlap_column(group: str) -> Column:
    """The column of the overlap with evidence."""
    return Column(group, METRICS[overlap()].label, digits=OVERLAP_DIGITS)


def _overlap_cell(curve_set: CurveSet, row: ShownMethod) -> Cell:
    """The mean overlap of a method with evidence; undefined for inverted relevance."""
    summary = None if row.inverted else curve_set.overlap.get(row.method)
    if summary is not None:
        return mean_cell(summary, _printed(curve_set, row.method, overlap()))
    return Cell(state=curve_set.noise.get(row.method, UNDEFINED) if curve_set.overlap else UNDEFINED)


def _printed(curve_set: CurveSet, method: str, measure: str) -> float | None:
    """The paper's number for the same model."""
    base = curve_set.bases.get(method, method)
    return attnlrp().get((curve_set.task, curve_set.published or "", base, measure))


def curve_figures(curve_sets: Sequence[CurveSet], results: Results) -> list[Figure]:
    """A figure for each task, perturbation and followed number.

    It has a row of panels for each model: MoRF, LeRF and their difference.
    """
    by_figure: dict[tuple[str, str, str], list[CurveSet]] = {}
    for curve_set in curve_sets:
        if curve_set.curves:
            by_figure.setdefault((curve_set.task, curve_set.perturbation, curve_set.score), []).append(curve_set)
    figures = []
    for (task, way, score), of_figure in by_figure.items():
        drawn = []
        counts: set[int] = set()
        for curve_set, (order, title) in product(of_figure, PANELS.items()):
            for method, curves in curve_set.curves.items():
                mean = curves[order]
                counts.add(mean.n)
                drawn.append(Curve(f"{curve_set.model} · {title}", method, GRID, mean.mean, mean.low, mean.high))
        panels = curve_panels(drawn, results.methods, results.baseline)
        caption = (
            f"Mean {FOLLOWED[score]} over {span(counts)} samples as tokens are removed ({WAYS[way]}), with 95 % "
            "intervals. Lower is better if the most relevant tokens are removed first, higher if the least relevant "
            "are. The area of the difference is ΔA."
        ) + note_of([way])
        axes = ("share of removed tokens", "logit")
        plot = Plot(f"faithfulness_{task}_{way}{_FILE[score]}", f"Faithfulness, {task}{OF_SCORE[score]}", caption, axes)
        figures += plot.figures(panels, results.methods)
    return figures
