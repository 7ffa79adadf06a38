"""Cells of tables that are made of scores, and where they stand."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from evaluation.report.results import Place, Results, Score
from evaluation.report.table import DONE, NOISE, UNDEFINED, Cell, Column, mark
from evaluation.scoring.metrics import METRICS

Group = tuple[str, ...]  # methods that share a column


def score_cell(results: Results, place: Place, metric: str, table: str, side: str, **changes: str) -> Cell:
    """The score of the default variant with `changes`, or why there is none; `table` and `side` are Close Look's."""
    state = results.state(place)
    if changes and not results.offers(place.task, place.method, changes):
        state = UNDEFINED
    if state == DONE and results.is_noise(place, **changes):
        state = NOISE
    if state != DONE:
        return Cell(state=state)
    reference = results.reference(table, side, place, metric)
    score = results.score(place, metric, **changes)
    return cell_of(score, DONE if score else UNDEFINED, reference)


def cell_of(score: Score | None, state: str, reference: float | None = None) -> Cell:
    if score is None:
        return Cell(state=state)
    return Cell(score.value, state, score.n, reference=reference)


def tasks_and_models(results: Results) -> Iterator[tuple[str, str]]:
    """What rows of score tables are about, in their order."""
    return ((task, model) for task in results.scored for model in results.models if (model, task) in results.dtypes)


def metric_column(group: str, metric: str, side: str = "") -> Column:
    """Percent is said by the caption, another unit by the number."""
    unit = METRICS[metric].unit
    return Column(group, METRICS[metric].label, side, unit="" if unit == "%" else f" {unit}")


def marked(cells: Sequence[Cell], metric: str, second: bool = True) -> list[Cell]:
    return mark(cells, digits=1, second=second, lower=not METRICS[metric].higher_is_better)


def group_label(results: Results, group: Group) -> str:
    return "/".join(results.label(method) for method in group)


def first_defined(results: Results, group: Group, model: str, task: str, dtype: str) -> Place:
    """The first of the group's methods that the model has."""
    places = [Place(model, task, dtype, method) for method in group]
    return next((place for place in places if results.state(place) != UNDEFINED), places[0])
