"""Tables of faithfulness: areas under the curves of perturbed inputs, in the forms of AttnLRP's tables 1 and 6 to 8."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from evaluation.report.results import Methods, Results, label
from evaluation.report.table import DONE, MISSING, UNDEFINED, Cell, Column, Row, Table, mark
from evaluation.scoring.areas import AREAS, Areas, MeanCurve, rank_correlation
from evaluation.scoring.faithfulness import MEASURES
from evaluation.scoring.metrics import METRICS, lead
from evaluation.scoring.statistics import TEST, step_down

DELTA = AREAS[0]
DIGITS = 2
PAPER = "AttnLRP"
WAYS = {"zero": "embeddings zeroed", "mask": "masked", "delete": "deleted"}
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
    published: str | None = None  # the model in AttnLRP's tables

    @property
    def methods(self) -> list[str]:
        return [*self.areas.variants, *self.lacking]

    def place(self) -> str:
        """Beside the task."""
        return f"{self.model}, {WAYS[self.perturbation]}"


@cache
def attnlrp() -> Mapping[tuple[str, str, str, str], float]:
    """AttnLRP's tables 6 to 8 as areas of flipping: (task, model, method, measure) -> number.

    The paper prints areas of insertion: its MoRF area is the LeRF area of flipping.
    """
    with open(Path(__file__).with_name("attnlrp.csv"), encoding="utf-8", newline="") as file:
        return {tuple(row[:4]): float(row[4]) for row in list(csv.reader(file))[1:]}  # type: ignore[misc]


def areas_table(drawn: Sequence[Drawn], results: Results) -> Table:
    """A method a row, its three areas with intervals, as AttnLRP's tables 6 to 8."""
    p = against_zero(drawn)
    rows = []
    for at, one in enumerate(drawn):
        methods = _ordered(one.methods, results.methods)
        by_measure = {m: [_cell(one, method, m) for method in methods] for m in AREAS}
        by_measure[DELTA] = [
            cell if cell.value is None else _with_p(cell, p[at, method])
            for cell, method in zip(by_measure[DELTA], methods, strict=True)
        ]
        marked = [mark(cells, DIGITS, lower=not MEASURES[m].higher_is_better) for m, cells in by_measure.items()]
        for method, *cells in zip(methods, *marked, strict=True):
            counts = [_left_out(one, method), _over_baseline(one, method, results)]
            rows.append(Row(one.task, (one.place(), label(results.methods, method)), (*cells, *counts)))
    return Table(
        "faithfulness",
        "Areas under faithfulness curves",
        "The target's logit as tokens go, the most relevant first (MoRF) or the least (LeRF), by trapezoids over the "
        "share of tokens that are gone; ΔA is LeRF minus MoRF (AttnLRP, equation 31). Means over samples with 95 % "
        "bootstrap intervals; the best of a model is bold. Stars on ΔA: it differs from zero, * p < 0.05, ** p < 0.01 "
        "(sign-flip test, Holm over the table). The last column is ΔA minus that of random relevance on the same "
        "samples (paired, Holm over pairs). Left out are samples whose relevance or logits are not finite.",
        ("model", "method"),
        (
            *(Column("", MEASURES[m].label, digits=DIGITS) for m in AREAS),
            Column("", "left out", digits=0),
            Column("", "ΔA over random", signed=True, digits=DIGITS),
        ),
        tuple(rows),
        paper=PAPER,
    )


def overview_table(drawn: Sequence[Drawn], results: Results) -> Table:
    """ΔA with a method a row and a column for each model and task, as AttnLRP's table 1."""
    methods = _ordered({method for one in drawn for method in one.methods}, results.methods)
    by_place = [mark([_cell(one, method, DELTA) for method in methods], DIGITS) for one in drawn]
    return Table(
        "faithfulness_overview",
        "Faithfulness of every method",
        "ΔA of the table below, larger is better.",
        ("method",),
        tuple(Column(one.task, one.place(), digits=DIGITS) for one in drawn),
        tuple(
            Row("", (label(results.methods, method),), cells)
            for method, cells in zip(methods, zip(*by_place, strict=True), strict=True)
        ),
        paper=PAPER,
    )


def pairs_table(drawn: Sequence[Drawn], results: Results) -> Table:
    """ΔA of every method minus that of every other, on the same samples."""
    columns = _ordered({method for one in drawn for method in one.methods}, results.methods)
    rows = [
        Row(
            one.task,
            (one.place(), label(results.methods, method)),
            tuple(_difference(one, method, other) for other in columns),
        )
        for one in drawn
        for method in _ordered(one.methods, results.methods)
    ]
    return Table(
        "faithfulness_pairs",
        "Faithfulness, methods against each other",
        f"ΔA of the row's method minus the column's, on samples that all have. * p < 0.05, ** p < 0.01: {TEST}.",
        ("model", "method"),
        tuple(Column("minus", label(results.methods, method), signed=True, digits=DIGITS) for method in columns),
        tuple(rows),
    )


@dataclass(frozen=True)
class Point:
    """A method of one model and task: evidence found, faithfulness, and cost in forwards of the sample."""

    method: str
    evidence: Cell
    delta: Cell
    forwards: float


def points(one: Drawn, results: Results, forwards: Mapping[str, float]) -> list[Point]:
    """Methods that have both sides. `forwards` are the costs of methods."""
    compared = results.comparisons.get((one.model, one.task, one.dtype))
    found = []
    for method in _ordered(one.areas.variants, results.methods):
        at = compared.at(method, lead()) if compared is not None else None
        delta = _cell(one, method, DELTA)
        if compared is not None and at is not None and delta.value is not None:
            evidence = Cell(
                float(compared.mean[at]), n=compared.n, low=float(compared.low[at]), high=float(compared.high[at])
            )
            found.append(Point(method, evidence, delta, forwards[method]))
    return found


def evidence_table(drawn: Sequence[Drawn], found: Sequence[Sequence[Point]], results: Results) -> Table:
    """Both sides of every method; `found` are the points of each of `drawn`."""
    unit = METRICS[lead()].unit
    return Table(
        "evidence_faithfulness",
        "Evidence against faithfulness",
        f"How often a method's most relevant token is evidence ({METRICS[lead()].label}, {unit}), how faithful it is "
        "(ΔA), and what it costs in forwards of the sample, a backward counted as one. 95 % bootstrap intervals.",
        ("model", "method"),
        (
            Column("", METRICS[lead()].label),
            Column("", MEASURES[DELTA].label, digits=DIGITS),
            Column("", "forwards", significant=3),
        ),
        tuple(
            Row(one.task, (one.place(), label(results.methods, p.method)), (p.evidence, p.delta, Cell(p.forwards)))
            for one, own in zip(drawn, found, strict=True)
            for p in own
        ),
    )


def agreement(found: Sequence[Point]) -> float:
    """Spearman's rank correlation of methods by evidence and by faithfulness; NaN where there is none."""
    return rank_correlation([p.evidence.value or 0.0 for p in found], [p.delta.value or 0.0 for p in found])


def agreement_table(drawn: Sequence[Drawn], found: Sequence[Sequence[Point]]) -> Table:
    rows = []
    for one, own in zip(drawn, found, strict=True):
        value = agreement(own)
        cell = Cell(value) if value == value else Cell(state=UNDEFINED)
        rows.append(Row(one.task, (one.place(),), (cell, Cell(len(own)))))
    return Table(
        "evidence_faithfulness_ranks",
        "Do both rankings agree?",
        "Spearman's rank correlation of methods by evidence and by faithfulness: 1 where both order them alike.",
        ("model",),
        (Column("", "rank correlation", digits=DIGITS), Column("", "methods", digits=0)),
        tuple(rows),
    )


def against_zero(drawn: Sequence[Drawn]) -> dict[tuple[int, str], float]:
    """p values of ΔA, adjusted by Holm's method over all of them, by (index into `drawn`, method)."""
    places = [(at, method) for at, one in enumerate(drawn) for method in one.areas.p_zero]
    adjusted = step_down([drawn[at].areas.p_zero[method] for at, method in places])
    return dict(zip(places, adjusted, strict=True))


def _cell(one: Drawn, method: str, measure: str) -> Cell:
    summary = one.areas.summaries.get((method, measure))
    if summary is None:
        return Cell(state=MISSING if method in one.lacking else UNDEFINED)
    reference = attnlrp().get((one.task, one.published or "", method, measure))
    if not summary.n:
        return Cell(state="not finite", reference=reference)
    return Cell(summary.value, DONE, summary.n, summary.low, summary.high, reference=reference)


def _with_p(cell: Cell, p: float) -> Cell:
    return Cell(**{**vars(cell), "p": p})


def _left_out(one: Drawn, method: str) -> Cell:
    summary = one.areas.summaries.get((method, DELTA))
    return Cell(state=UNDEFINED) if summary is None else Cell(summary.left_out)


def _over_baseline(one: Drawn, method: str, results: Results) -> Cell:
    return Cell(state=UNDEFINED) if results.baseline is None else _difference(one, method, results.baseline)


def _difference(one: Drawn, method: str, other: str) -> Cell:
    compared = one.areas.comparison
    at, base = (compared.at(method, DELTA), compared.at(other, DELTA)) if compared is not None else (None, None)
    if compared is None or at is None or base is None or method == other:
        return Cell(state=UNDEFINED)
    pair = (at[0], *base)
    return Cell(
        float(compared.mean[at] - compared.mean[base]),
        n=compared.n,
        low=float(compared.difference_low[pair]),
        high=float(compared.difference_high[pair]),
        p=float(compared.p[pair]),
    )


def _ordered(names: Sequence[str] | set[str] | Mapping[str, object], methods: Methods) -> list[str]:
    return sorted(names, key=lambda name: (methods[name].order, name))
