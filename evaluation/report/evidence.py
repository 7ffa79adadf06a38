"""Evidence against faithfulness: both sides of every method, and whether the two rankings agree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from evaluation.report.faithfulness import DELTA, DIGITS, Drawn, area_cell, ordered
from evaluation.report.results import Place, Results, label
from evaluation.report.table import UNDEFINED, Cell, Column, Row, Table
from evaluation.scoring.areas import rank_correlation
from evaluation.scoring.faithfulness import MEASURES
from evaluation.scoring.metrics import METRICS, lead


@dataclass(frozen=True)
class Point:
    """A method of one model and task: agreement with evidence, faithfulness, and cost in forwards of the sample."""

    method: str
    evidence: Cell
    delta: Cell
    forwards: float


def points(one: Drawn, results: Results, forwards: Mapping[str, float]) -> list[Point]:
    """Methods that have both sides; not those whose relevance in the setting of table 1 is nothing but rounding.

    `forwards` are the costs of methods.
    """
    compared = results.comparisons.get((one.model, one.task, one.dtype))
    both = []
    for method in ordered(one.areas.variants, results.methods):
        noise = results.is_noise(Place(one.model, one.task, one.dtype, method))
        at = compared.at(method, lead()) if compared is not None and not noise else None
        delta = area_cell(one, method, DELTA)
        if compared is not None and at is not None and delta.value is not None:
            evidence = Cell(
                float(compared.mean[at]), n=compared.n, low=float(compared.low[at]), high=float(compared.high[at])
            )
            both.append(Point(method, evidence, delta, forwards[method]))
    return both


def evidence_table(drawn: Sequence[Drawn], points_of: Sequence[Sequence[Point]], results: Results) -> Table:
    """Both sides of every method; `points_of` are those of each of `drawn`."""
    unit = METRICS[lead()].unit
    return Table(
        "evidence_faithfulness",
        "Evidence against faithfulness",
        f"How often a method's most relevant token is evidence ({METRICS[lead()].label}, {unit}, in the setting of "
        "table 1), how faithful it is (ΔA), and what it costs in forwards of the sample, a backward counted as one. "
        "95 % bootstrap intervals.",
        ("model", "method"),
        (
            Column("", METRICS[lead()].label),
            Column("", MEASURES[DELTA].label, digits=DIGITS),
            Column("", "forwards", significant=3),
        ),
        tuple(
            Row(one.task, (one.setting(), label(results.methods, p.method)), (p.evidence, p.delta, Cell(p.forwards)))
            for one, own in zip(drawn, points_of, strict=True)
            for p in own
        ),
    )


def agreement(of_methods: Sequence[Point]) -> float:
    """Spearman's rank correlation of methods by evidence and by faithfulness; NaN where there is none."""
    return rank_correlation([p.evidence.value or 0.0 for p in of_methods], [p.delta.value or 0.0 for p in of_methods])


def agreement_table(drawn: Sequence[Drawn], points_of: Sequence[Sequence[Point]]) -> Table:
    rows = []
    for one, own in zip(drawn, points_of, strict=True):
        value = agreement(own)
        cell = Cell(value) if value == value else Cell(state=UNDEFINED)
        rows.append(Row(one.task, (one.setting(),), (cell, Cell(len(own)))))
    return Table(
        "evidence_faithfulness_ranks",
        "Do both rankings agree?",
        "Spearman's rank correlation of methods by evidence and by faithfulness: 1 where both order them alike.",
        ("model",),
        (Column("", "rank correlation", digits=DIGITS), Column("", "methods", digits=0)),
        tuple(rows),
    )
