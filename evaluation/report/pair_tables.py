"""Tables 2 to 7 of Close Look: two settings of table 1 side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from evaluation.report.results import Results, close_look
from evaluation.report.score_cells import (
    Group,
    first_defined,
    group_label,
    marked,
    metric_column,
    score_cell,
    tasks_and_models,
)
from evaluation.report.table import UNDEFINED, Cell, Row, Table
from evaluation.scoring.metrics import SETTINGS, shown

DOUBLE = "float64"


@dataclass(frozen=True)
class Pair:
    """A table that holds two settings of table 1 side by side."""

    number: str
    title: str
    sides: tuple[str, str]
    left: Mapping[str, str] = field(default_factory=dict)  # what differs from the default variant
    right: Mapping[str, str] = field(default_factory=dict)
    as_printed: bool = False  # only the methods that Close Look's table has
    precisions: bool = False  # the sides are precisions, not variants
    printed: str | None = None  # the table of Close Look that has the numbers, where it is another one
    distinct: bool = False  # rows whose sides are equal throughout are left out
    note: str = ""


NO_POSITIONS = " Models whose embeddings are token embeddings alone have no choice and are left out."
EMBEDDINGS = (("full", "partial"), {"embedding": "full"}, {"embedding": "partial"})
PAIRS = (
    Pair(
        "2",
        "Contrastive against target explanations",
        ("contrastive", "target"),
        {"explanation": "contrastive"},
        {"explanation": "target"},
    ),
    Pair("3", "Special tokens", ("without", "with"), {"tokens": "non_special"}, {"tokens": "all"}),
    Pair("4", "Context only against full question", ("context", "full"), {"scope": "context"}, {"scope": "full"}),
    Pair("5", "Precision", ("default", "float64"), precisions=True, note=" The default precision stands in the row."),
    Pair(
        "6",
        "Full against partial embeddings",
        *EMBEDDINGS,
        as_printed=True,
        distinct=True,
        note=NO_POSITIONS,
    ),
    Pair(
        "7",
        "Full against partial embeddings, every method that has the choice",
        *EMBEDDINGS,
        printed="6",
        distinct=True,
        note=NO_POSITIONS + " Close Look prints table 6 again under this number.",
    ),
)


def pair_table(results: Results, pair: Pair) -> Table:
    """Tables 2 to 7. Rows and methods without either side are left out."""
    metrics = shown(SETTINGS)
    printed = {key[4] for key in close_look() if key[0] == pair.number}
    groups = [group for group in results.groups() if not pair.as_printed or printed.intersection(group)]
    cells_of = {
        (task, model): {group: _sides(results, pair, group, model, task, metrics) for group in groups}
        for task, model in tasks_and_models(results)
    }
    kept = [g for g in groups if any(c.state != UNDEFINED for cells in cells_of.values() for c in cells[g])]
    return Table(
        f"table{pair.number}",
        f"Table {pair.number}. {pair.title}",
        f"Each pair is {pair.sides[0]}, {pair.sides[1]}; otherwise the setting of table 1; the better one is bold."
        + pair.note,
        ("model", "default") if pair.precisions else ("model",),
        tuple(metric_column(group_label(results, g), m, side) for g in kept for m in metrics for side in pair.sides),
        tuple(
            Row(task, _labels(results, pair, model, task), tuple(cell for group in kept for cell in cells[group]))
            for (task, model), cells in cells_of.items()
            if any(cell.state != UNDEFINED for group in kept for cell in cells[group])
            and not (pair.distinct and all(_same(cells[group]) for group in kept))
        ),
    )


def _sides(results: Results, pair: Pair, group: Group, model: str, task: str, metrics: Sequence[str]) -> list[Cell]:
    """Left and right of every metric."""
    dtypes = results.dtypes[model, task]
    chosen = (dtypes[0], dtypes[0])
    if pair.precisions:
        default = _default_precision(dtypes)
        if default is None or DOUBLE not in dtypes:
            return [Cell(state=UNDEFINED)] * (2 * len(metrics))
        chosen = (default, DOUBLE)
    printed = pair.printed or pair.number
    cells = []
    for metric in metrics:
        both = [
            score_cell(results, first_defined(results, group, model, task, dtype), metric, printed, side, **changes)
            for dtype, side, changes in zip(chosen, ("left", "right"), (pair.left, pair.right), strict=True)
        ]
        one_sided = any(cell.state == UNDEFINED for cell in both)
        cells += [Cell(state=UNDEFINED)] * 2 if one_sided else marked(both, metric, second=False)
    return cells


def _same(cells: Sequence[Cell]) -> bool:
    """Whether every pair of neighbours is the same number."""
    return all(
        left.value is not None and left.value == right.value
        for left, right in zip(cells[::2], cells[1::2], strict=True)
    )


def _labels(results: Results, pair: Pair, model: str, task: str) -> tuple[str, ...]:
    return (model, _default_precision(results.dtypes[model, task]) or "–") if pair.precisions else (model,)


def _default_precision(dtypes: Sequence[str]) -> str | None:
    """The model's own: the first that is not double."""
    return next((dtype for dtype in dtypes if dtype != DOUBLE), None)
