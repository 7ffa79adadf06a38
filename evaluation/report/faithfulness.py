"""Tables of faithfulness: areas under the curves of perturbed inputs, in the forms of AttnLRP's tables 1 and 6 to 8."""

from __future__ import annotations

import csv
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import NamedTuple

from evaluation.report.results import Methods, Results, label
from evaluation.report.table import (
    DONE,
    MISSING,
    NOISE,
    UNDEFINED,
    Cell,
    Column,
    Row,
    Table,
    mark,
    with_noise_told,
)
from evaluation.scoring.areas import AREAS, Areas, MeanCurve
from evaluation.scoring.faithfulness import MEASURES, Summary
from evaluation.scoring.metrics import METRICS, overlap
from evaluation.scoring.statistics import TEST, step_down

DELTA, MORF, LERF = AREAS
_OPPOSITE = {DELTA: DELTA, MORF: LERF, LERF: MORF}
DIGITS, OVERLAP_DIGITS = 2, 3  # as the paper prints them
PAPER = "AttnLRP"
WAYS = {"zero": "zeroed", "black": "black before normalisation", "mask": "masked", "delete": "deleted"}
NOT_DRAWN = "No curves are drawn: set `perturb` in the config and run `closelook perturb`."


@dataclass(frozen=True)
class Drawn:
    """The curves of one model, task and perturbation."""

    model: str
    task: str
    dtype: str
    perturbation: str
    areas: Areas
    curves: Mapping[str, Mapping[str, MeanCurve]]  # by method and order; "delta" is their difference
    lacking: Sequence[str] = ()  # methods whose curves are wanted and not drawn
    noise: Sequence[str] = ()  # methods whose curves follow nothing but rounding: they have no areas here
    overlap: Mapping[str, Summary] = field(default_factory=dict)  # IoU of evidence and the same relevance, by method
    published: str | None = None  # the model in AttnLRP's tables
    bases: Mapping[str, str] = field(default_factory=dict)  # what configured methods are called there, by name

    @property
    def methods(self) -> list[str]:
        return [*self.areas.variants, *self.lacking, *self.noise]

    def setting(self) -> str:
        """What tells it from others of its task: the model, and the way in which tokens go."""
        return f"{self.model}, {WAYS[self.perturbation]}"


class Shown(NamedTuple):
    """What a row shows: a method, or its relevance with the sign reversed, whose MoRF is the method's LeRF."""

    method: str
    inverted: bool = False

    def label(self, methods: Methods) -> str:
        return label(methods, self.method) + ", inverted" * self.inverted


@cache
def attnlrp() -> Mapping[tuple[str, str, str, str], float]:
    """AttnLRP's tables 6 to 8 as areas of flipping, and IoU of its table 1: (task, model, method, measure) -> number.

    The paper prints areas of insertion: its MoRF area is the LeRF area of flipping. Where table 1 differs from them, as
    in AtMan on IMDB (-0.20), the number is that of tables 6 to 8, whose areas give it.
    """
    with open(Path(__file__).with_name("attnlrp.csv"), encoding="utf-8", newline="") as file:
        return {tuple(row[:4]): float(row[4]) for row in list(csv.reader(file))[1:]}  # type: ignore[misc]


def areas_table(drawn: Sequence[Drawn], results: Results) -> Table:
    """A method a row, its three areas with intervals, as AttnLRP's tables 6 to 8; inverted methods follow their own."""
    p = against_zero(drawn)
    rows = []
    for at, one in enumerate(drawn):
        shown = [
            row for row in _shown(one.methods, results.methods) if not row.inverted or row.method in one.areas.variants
        ]
        by_measure = {m: [area_cell(one, method, m, inverted=inverted) for method, inverted in shown] for m in AREAS}
        by_measure[DELTA] = [
            cell if cell.value is None else replace(cell, p=p[at, row.method])
            for cell, row in zip(by_measure[DELTA], shown, strict=True)
        ]
        marked = [_marked(cells, shown, lower=not MEASURES[m].higher_is_better) for m, cells in by_measure.items()]
        for row, *cells in zip(shown, *marked, strict=True):
            counts = [_left_out(one, row.method), _over_baseline(one, row, results)]
            rows.append(Row(one.task, (one.setting(), row.label(results.methods)), (*cells, *counts)))
    return with_noise_told(
        Table(
            "faithfulness",
            "Areas under faithfulness curves",
            "The target's logit as tokens go, the most relevant first (MoRF) or the least (LeRF), by trapezoids over "
            "the share of tokens that are gone; ΔA is LeRF minus MoRF (AttnLRP, equation 31). Means over samples with "
            "95 % bootstrap intervals; the best of a model is bold. Stars on ΔA: it differs from zero, * p < 0.05, "
            "** p < 0.01 (sign-flip test, Holm over the table). The last column is ΔA minus that of random relevance "
            "on the same samples (paired, Holm over pairs). Left out are samples whose relevance or logits are not "
            "finite." + _inverted_told(drawn, results),
            ("model", "method"),
            (
                *(Column("", MEASURES[m].label, digits=DIGITS) for m in AREAS),
                Column("", "left out", digits=0),
                Column("", "ΔA over random", signed=True, digits=DIGITS),
            ),
            tuple(rows),
            paper=PAPER,
        )
    )


def overview_table(drawn: Sequence[Drawn], results: Results) -> Table:
    """ΔA and overlap with evidence, a method a row and two columns for each model and task, as AttnLRP's table 1.

    Numbers of the paper's models that are not among those of `drawn` stand in columns of their own.
    """
    shown = _shown({method for one in drawn for method in one.methods}, results.methods)
    area, iou = MEASURES[DELTA].label, METRICS[overlap()].label
    columns, cells = [], []
    for one in drawn:
        group = f"{one.task} · {one.setting()}"
        columns += [Column(group, area, digits=DIGITS), Column(group, iou, digits=OVERLAP_DIGITS)]
        cells.append(_marked([area_cell(one, method, DELTA, inverted=inv) for method, inv in shown], shown))
        cells.append(_marked([_overlap_cell(one, row) for row in shown], shown, digits=OVERLAP_DIGITS))
    own = {(one.task, one.published) for one in drawn}
    for task, model in dict.fromkeys(key[:2] for key in attnlrp()):
        for measure, name, digits in ((DELTA, area, DIGITS), (overlap(), iou, OVERLAP_DIGITS)):
            printed = [None if inv else attnlrp().get((task, model, method, measure)) for method, inv in shown]
            if (task, model) not in own and any(value is not None for value in printed):
                columns.append(Column(f"{PAPER}: {task} · {model}", name, digits=digits))
                cells.append([Cell(state=UNDEFINED) if value is None else Cell(value) for value in printed])
    without = [name for name in dict.fromkeys(one.task for one in drawn) if results.tasks[name].evidence is None]
    lacks = f" {' and '.join(without)}: no evidence, hence no {iou}." if without else ""
    return with_noise_told(
        Table(
            "faithfulness_overview",
            "Faithfulness of every method",
            f"{area} is that of the table below; {iou} is the overlap of the evidence and as many tokens of "
            "the same relevance, the largest, over their union: a mean over correctly predicted samples, among the "
            "tokens that other tables count. Larger is better in both."
            + lacks
            + f" Columns named {PAPER} are the paper's own models."
            + _inverted_told(drawn, results),
            ("method",),
            tuple(columns),
            tuple(
                Row("", (row.label(results.methods),), own)
                for row, own in zip(shown, zip(*cells, strict=True), strict=True)
            ),
            paper=PAPER,
        )
    )


def pairs_table(drawn: Sequence[Drawn], results: Results) -> Table:
    """ΔA of every method minus that of every other, on the same samples."""
    columns = ordered({method for one in drawn for method in one.methods}, results.methods)
    rows = [
        Row(
            one.task,
            (one.setting(), label(results.methods, method)),
            tuple(_difference(one, method, other) for other in columns),
        )
        for one in drawn
        for method in ordered(one.methods, results.methods)
    ]
    return with_noise_told(
        Table(
            "faithfulness_pairs",
            "Faithfulness, methods against each other",
            f"ΔA of the row's method minus the column's, on samples that all have. * p < 0.05, ** p < 0.01: {TEST}.",
            ("model", "method"),
            tuple(Column("minus", label(results.methods, method), signed=True, digits=DIGITS) for method in columns),
            tuple(rows),
        )
    )


def against_zero(drawn: Sequence[Drawn]) -> dict[tuple[int, str], float]:
    """p values of ΔA, adjusted by Holm's method over all of them, by (index into `drawn`, method)."""
    tested = [(at, method) for at, one in enumerate(drawn) for method in one.areas.p_zero]
    adjusted = step_down([drawn[at].areas.p_zero[method] for at, method in tested])
    return dict(zip(tested, adjusted, strict=True))


def area_cell(one: Drawn, method: str, measure: str, *, inverted: bool = False) -> Cell:
    """An area of a method; with `inverted` that of the opposite relevance, which takes the same tokens in the other
    order: nothing is computed for it.
    """
    summary = one.areas.summaries.get((method, _OPPOSITE[measure] if inverted else measure))
    if summary is None:
        return Cell(state=NOISE if method in one.noise else MISSING if method in one.lacking else UNDEFINED)
    if inverted and measure == DELTA:
        summary = replace(summary, value=-summary.value, low=-summary.high, high=-summary.low)
    return _of(summary, None if inverted else _printed(one, method, measure))


def ordered(names: Collection[str], methods: Methods) -> list[str]:
    return sorted(names, key=lambda name: (methods[name].order, name))


def _shown(names: Collection[str], methods: Methods) -> list[Shown]:
    """Each method, and behind it the opposite of those whose records ask for it."""
    return [
        Shown(name, inverted)
        for name in ordered(names, methods)
        for inverted in (False, True)
        if not inverted or methods[name].inverted
    ]


def _marked(cells: Sequence[Cell], shown: Sequence[Shown], digits: int = DIGITS, lower: bool = False) -> list[Cell]:
    """The best of the methods, of which their opposites are none."""
    own = iter(mark([c for c, row in zip(cells, shown, strict=True) if not row.inverted], digits, lower=lower))
    return [cell if row.inverted else next(own) for cell, row in zip(cells, shown, strict=True)]


def _inverted_told(drawn: Sequence[Drawn], results: Results) -> str:
    if not any(row.inverted for one in drawn for row in _shown(one.areas.variants, results.methods)):
        return ""
    return (
        " Inverted is the same relevance with its sign reversed (AttnLRP B.5): MoRF and LeRF change roles. It is no "
        "method of its own, so it is not ranked."
    )


def _overlap_cell(one: Drawn, row: Shown) -> Cell:
    summary = None if row.inverted else one.overlap.get(row.method)
    if summary is None:
        return Cell(state=NOISE if row.method in one.noise and one.overlap else UNDEFINED)
    return _of(summary, _printed(one, row.method, overlap()))


def _printed(one: Drawn, method: str, measure: str) -> float | None:
    """The paper's number for the same model."""
    return attnlrp().get((one.task, one.published or "", one.bases.get(method, method), measure))


def _of(summary: Summary, reference: float | None) -> Cell:
    if not summary.n:
        return Cell(state="not finite", reference=reference)
    low, high = (None, None) if math.isnan(summary.low) else (summary.low, summary.high)
    return Cell(summary.value, DONE, summary.n, low, high, reference=reference)


def _left_out(one: Drawn, method: str) -> Cell:
    summary = one.areas.summaries.get((method, DELTA))
    return Cell(state=UNDEFINED) if summary is None else Cell(summary.left_out)


def _over_baseline(one: Drawn, row: Shown, results: Results) -> Cell:
    """The difference of a method from the baseline; the opposite of a method has no test of its own."""
    if results.baseline is None or row.inverted:
        return Cell(state=UNDEFINED)
    return _difference(one, row.method, results.baseline)


def _difference(one: Drawn, method: str, other: str) -> Cell:
    compared = one.areas.comparison
    at, base = (compared.at(method, DELTA), compared.at(other, DELTA)) if compared is not None else (None, None)
    if compared is None or at is None or base is None or method == other:
        noise = method != other and not {method, other}.isdisjoint(one.noise)
        return Cell(state=NOISE if noise else UNDEFINED)
    pair = (at[0], *base)
    return Cell(
        float(compared.mean[at] - compared.mean[base]),
        n=compared.n,
        low=float(compared.difference_low[pair]),
        high=float(compared.difference_high[pair]),
        p=float(compared.p[pair]),
    )
