"""Evidence and faithfulness of the same relevance: both numbers of every method, and the agreement of rankings.

Rankings are also compared between every two perturbations.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from closelook.evaluation.report.drawing import POINT, Bar, Line, Look, Panel, Plot, looks
from closelook.evaluation.report.page import Figure
from closelook.evaluation.report.results import Results, ordered
from closelook.evaluation.report.sections.faithfulness import DELTA, DIGITS, OF_SCORE, WAYS, CurveSet
from closelook.evaluation.report.table import UNDEFINED, Cell, Column, Entry, Table, fills, mean_cell, row_of
from closelook.evaluation.scoring.faithfulness.areas import Agreement, agreement_of, under_both
from closelook.evaluation.scoring.faithfulness.scores import MEASURES, summarise
from closelook.evaluation.scoring.intervals import Resampling
from closelook.evaluation.scoring.metrics import METRICS, lead

SETTINGS = (
    "Rows say how tokens are removed (zeroed: their embedding is set to zero) and which number is explained and "
    "followed: the logit of the target, or where they say so, target − foil, its difference from the logit of the "
    "wrong word."
)


@dataclass(frozen=True)
class Point:
    """A method on one model and task: its evidence score, its faithfulness, and its cost."""

    method: str
    evidence: Cell
    delta: Cell  # ΔA
    forwards: float  # forward passes of a sample


@dataclass(frozen=True)
class EvidencePoints:
    """Evidence scores and ΔA of the same relevance on the same samples, for all methods of one setting of curves."""

    curve_set: CurveSet
    points: Sequence[Point]
    agreement: Agreement  # of the two rankings of methods, without random relevance

    @classmethod
    def of(
        cls, curve_set: CurveSet, results: Results, forwards: Mapping[str, float], resampling: Resampling
    ) -> EvidencePoints | None:
        """The points of `curve_set`; None if no method has both numbers. `forwards` are the costs of methods."""
        joint = curve_set.joint
        if joint is None or not len(joint.evidence):
            return None
        at, points = {name: index for index, name in enumerate(joint.methods)}, []
        drawn, bounds = resampling.within(joint.clusters), (0.0, METRICS[lead()].scale)
        for method in ordered(results.methods, joint.methods):
            evidence = summarise(joint.evidence[:, at[method]], drawn, bounds)
            delta = summarise(joint.delta[:, at[method]], drawn)
            points.append(Point(method, mean_cell(evidence), mean_cell(delta), forwards[method]))
        return cls(curve_set, points, joint.agreement(results.baselines, resampling))


def evidence_table(of_settings: Sequence[EvidencePoints], results: Results) -> Table:
    """Evidence score, ΔA and cost of every method."""
    metric = METRICS[lead()]
    scores = (Column("", metric.label), Column("", MEASURES[DELTA].label, digits=DIGITS))
    columns = (*scores, Column("", "samples", digits=0), Column("", "forwards", significant=3))
    frame: list[Entry] = []
    for setting in of_settings:
        for point in setting.points:
            row = setting.curve_set.row(results.label(point.method))
            cells = (point.evidence, point.delta, Cell(setting.agreement.n), Cell(point.forwards))
            frame += row_of(*row, columns, cells)
    return Table(
        "evidence_faithfulness",
        "Evidence beside faithfulness",
        f"{metric.label}: the share of samples in which a method's most relevant token is evidence. ΔA: how faithful "
        "the same relevance is on the same samples, those that the model predicts correctly. Forwards: the cost of all "
        "explanations that this run computes with the method, in forward passes of a sample; a backward pass counts as "
        f"a forward pass. {SETTINGS} 95 % intervals.",
        ("model", "method"),
        columns,
    ).filled(frame)


RANKS = Table(
    "evidence_faithfulness_ranks",
    "Do both rankings agree?",
    "Spearman's rank correlation between the methods' mean evidence scores and their mean faithfulness, of the "
    "same relevance on the same samples: 1 if both rank the methods alike. Random relevance is left out. A "
    "correlation over few methods says little, even if its interval is narrow. 95 % bootstrap intervals over "
    "samples.",
    ("model",),
)


@fills(RANKS)
def ranks_table(of_settings: Sequence[EvidencePoints]) -> Iterator[Entry]:
    """The rank correlation of each setting, with its interval and the number of methods."""
    for setting in of_settings:
        yield from _correlated(setting.curve_set.task, (setting.curve_set.setting(),), setting.agreement)


_RANKS = (
    Column("", "rank correlation", digits=DIGITS),
    Column("", "methods", digits=0),
    Column("", "samples", digits=0),
)


def _correlated(task: str, labels: tuple[str, ...], value: Agreement) -> Iterator[Entry]:
    """A row of a table of rank correlations: the correlation, and its numbers of methods and samples."""
    cells = (mean_cell(value, otherwise=UNDEFINED), Cell(value.methods), Cell(value.n))
    yield from row_of(task, labels, _RANKS, cells)


def _panel_title(curve_set: CurveSet, curve_sets: Sequence[CurveSet]) -> str:
    """The model of a panel; with the perturbation if the model and task have several."""
    model_and_task = (curve_set.model, curve_set.task)
    same_task = (other for other in curve_sets if (other.model, other.task) == model_and_task)
    several = len({other.perturbation for other in same_task}) > 1
    return curve_set.setting() if several else curve_set.model + OF_SCORE[curve_set.score]


def evidence_figure(of_settings: Sequence[EvidencePoints], results: Results) -> list[Figure]:
    """The figure of evidence scores against faithfulness: a panel for each model and task, a point for each method.

    The list is empty without points.
    """
    methods = {point.method for setting in of_settings for point in setting.points}
    look = looks(methods, results.methods, results.baseline)
    curve_sets = [setting.curve_set for setting in of_settings]
    panels = []
    for setting in of_settings:
        lines = [_point(point, results.label(point.method), look[point.method]) for point in setting.points]
        value = setting.agreement.value
        rho = "" if math.isnan(value) else f" · ρ = {value:.2f}"
        title = _panel_title(setting.curve_set, curve_sets)
        panels.append(Panel(f"{title} · {setting.curve_set.task}{rho}", lines, {"xlim": (-4, 104)}))
    metric = METRICS[lead()]
    caption = (
        f"Each point is a method. Horizontal: the share of samples in which its most relevant token is evidence "
        f"({metric.label}). Vertical: its faithfulness (ΔA), of the same relevance on the same samples. Lines are 95 % "
        "intervals; larger points cost more. ρ is the correlation of the two rankings of methods, without random "
        "relevance; the table of ranks gives its interval and the number of methods."
    )
    axes = (f"evidence: {metric.label}, {metric.unit}", "faithfulness: ΔA")
    plot = Plot("evidence_faithfulness", "Evidence beside faithfulness", caption, axes, tabled=True)
    return plot.figures(panels, results.methods)


def _point(point: Point, name: str, look: Look) -> Line:
    """A method as a point of the figure, with its intervals as bars; a costlier method has a larger point."""
    evidence, delta = point.evidence, point.delta
    x, y = evidence.value or 0.0, delta.value or 0.0
    thin, bars = {"linewidth": 0.9}, list[Bar]()
    if evidence.low is not None and evidence.high is not None:
        bars.append(([evidence.low, evidence.high], [y, y], thin))
    if delta.low is not None and delta.high is not None:
        bars.append(([x, x], [delta.low, delta.high], thin))
    size = {"markersize": 4 + 1.6 * math.log2(1 + point.forwards), "alpha": 0.85}
    return Line(name, [x], [y], {**look, **POINT, **size}, bars=bars)


WAYS_RANKS = Table(
    "faithfulness_ways",
    "Do rankings depend on how tokens are removed?",
    "Spearman's rank correlation between the methods' mean ΔA under two ways of removing tokens, on the samples "
    "that all methods have under both: 1 if both ways order the methods alike. Random relevance is left out. "
    "95 % bootstrap intervals over samples.",
    ("model", "ways"),
)


@fills(WAYS_RANKS)
def ways_table(curve_sets: Sequence[CurveSet], results: Results, resampling: Resampling) -> Iterator[Entry]:
    """A row for each model, each pair of perturbations, and each number that curves follow.

    The table has no rows if there is a single perturbation.
    """
    by_score: dict[tuple[str, ...], list[CurveSet]] = defaultdict(list)
    for curve_set in curve_sets:
        by_score[curve_set.task, curve_set.model, curve_set.dtype, curve_set.score].append(curve_set)
    for (task, model, _, score), of_score in by_score.items():
        for first, second in combinations(of_score, 2):
            ids, deltas = under_both(first.areas, second.areas, results.baselines)
            drawn = resampling.within(results.clusters_of(task, ids))
            agreement = agreement_of(deltas[..., 0], deltas[..., 1], drawn)
            names = f"{WAYS[first.perturbation]}, {WAYS[second.perturbation]}"
            yield from _correlated(task, (model + OF_SCORE[score], names), agreement)
