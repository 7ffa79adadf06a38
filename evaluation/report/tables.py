"""Tables 1 to 7 and 9 of Close Look, from results: all that are made of scores."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import zip_longest

from evaluation.report.papers import close_look
from evaluation.report.results import Place, Results, Score
from evaluation.report.table import (
    BOLD,
    DONE,
    MISSING,
    NOISE,
    UNDEFINED,
    UNDEFINED_CELL,
    UNSEEN,
    Cell,
    Column,
    Entry,
    Table,
    difference_cell,
    interval_of,
    known,
    of_group,
    smallest_told,
)
from evaluation.scoring.metrics import METRICS, OVERVIEW, SETTINGS, lead, shown
from evaluation.scoring.statistics import TEST

DOUBLE = "float64"
CHANCE = (
    "Random is the chance of relevance that knows nothing: exact for each sample, and where a metric depends on the "
    "sizes of relevance (IoU soft) a mean over draws."
)
Group = tuple[str, ...]  # methods that share a column


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
TWICE = " Close Look prints table 6 again under this number."
FULL = "Full against partial embeddings"
EMBEDDINGS = (("full", "partial"), {"embedding": "full"}, {"embedding": "partial"})
EXPLANATIONS = (("contrastive", "target"), {"explanation": "contrastive"}, {"explanation": "target"})
TABLE_2 = Pair("2", "Contrastive against target explanations", *EXPLANATIONS)
TABLE_3 = Pair("3", "Special tokens", ("without", "with"), {"tokens": "non_special"}, {"tokens": "all"})
TABLE_4 = Pair("4", "Context only against full question", ("context", "full"), {"scope": "context"}, {"scope": "full"})
TABLE_5 = Pair("5", "Precision", ("default", DOUBLE), precisions=True, note=" The default precision stands in the row.")
TABLE_6 = Pair("6", FULL, *EMBEDDINGS, as_printed=True, distinct=True, note=NO_POSITIONS)
EVERY = f"{FULL}, every method that has the choice"
TABLE_7 = Pair("7", EVERY, *EMBEDDINGS, printed="6", distinct=True, note=NO_POSITIONS + TWICE)
PAIRS = (TABLE_2, TABLE_3, TABLE_4, TABLE_5, TABLE_6, TABLE_7)


def score_tables(results: Results) -> list[Table]:
    """All tables that are made of scores, in the paper's order."""
    pairs = [pair_table(results, pair) for pair in PAIRS]
    return [overview(results), beside_random(results), against_each_other(results), *pairs, accuracies(results)]


def overview(results: Results) -> Table:
    """Table 1: every method in its default setting."""
    scopes = "".join(f", on {name} the {task.scope} only" for name, task in results.tasks.items() if task.scope)
    return Table(
        "table1",
        "Table 1. Overview",
        f"Contrastive explanations, full embeddings, no special tokens{scopes}. "
        f"Percent, over correctly predicted samples. {CHANCE} {BOLD}",
        ("model",),
    ).filled(_overview(results))


def _overview(results: Results) -> Iterator[Entry]:
    for place in default_places(results):
        for group in results.groups():
            own = first_defined(results, group, place)
            for metric in shown(OVERVIEW):
                compared, better = results.comparisons.get(own[:3]), METRICS[metric].higher_is_better
                cell = of_group(score_cell(results, own, metric, "1", "left"), compared, own.method, metric, better)
                yield Entry(place.task, (place.model,), _metric_column(results, group, metric), cell)


def beside_random(results: Results) -> Table:
    """Table 1 with a method a row, every metric, its interval, and its difference from the baseline's relevance."""
    return Table(
        "table1_random",
        "Table 1, beside random",
        f"The setting of table 1 with a method a row and 95 % intervals. {CHANCE} Δ is the difference from it on the "
        "same samples: * p < 0.05, ** p < 0.01 (paired sign-flip test, Holm over pairs; rows of noise are not tested). "
        + UNSEEN,
        ("model", "method"),
    ).filled(_beside_random(results))


def _beside_random(results: Results) -> Iterator[Entry]:
    base, measures = results.baseline, {name: Column(metric.label, metric.unit) for name, metric in METRICS.items()}
    places = list(_defined_places(results))
    for place, following in zip_longest(places, places[1:]):
        row = (place.task, (place.model, results.label(place.method)))
        for name, metric in METRICS.items():
            yield Entry(*row, measures[name], interval_cell(results, place, name))
            if base is not None and metric.is_compared:
                column = Column(metric.label, f"Δ {results.label(base)}", signed=True)
                yield Entry(*row, column, over_cell(results, place, base, name))
        if following is None or following[:2] != place[:2]:
            yield from smallest_told(place.task, (place.model,), measures, results.comparisons.get(place[:3]))


def against_each_other(results: Results) -> Table:
    """Every method minus every other, on the same samples."""
    columns = {method: Column("minus", results.label(method), signed=True) for method in results.ordered_methods()}
    frame = []
    for place in _defined_places(results):
        for other, column in columns.items():
            cell = over_cell(results, place, other, lead())
            frame.append(Entry(place.task, (place.model, results.label(place.method)), column, cell))
    return Table(
        "table1_pairs",
        "Table 1, methods against each other",
        f"{METRICS[lead()].label} of the row's method minus the column's, in points, on samples that both explain. "
        f"* p < 0.05, ** p < 0.01: {TEST}.",
        ("model", "method"),
        tuple(columns.values()),
    ).filled(frame)


def accuracies(results: Results) -> Table:
    """Table 9: the models, and how often the target's logit is larger than the foil's."""
    return Table(
        "table9",
        "Table 9. Models and prediction accuracy",
        "Accuracy is the share of samples whose target has a larger logit than the foil, percent.",
        ("model",),
        (*SHAPE.values(), *(Column("accuracy", task) for task in results.tasks)),
    ).filled(_accuracies(results))


SHAPE = {name: Column("model", name, digits=0) for name in ("parameters", "layers", "heads", "hidden size")}
SHAPE["parameters"] = replace(SHAPE["parameters"], digits=2, unit=" M")


def _accuracies(results: Results) -> Iterator[Entry]:
    for model in results.models:
        size = results.sizes.get(model)
        shape = (None,) * len(SHAPE) if size is None else (size.parameters / 1e6, *size[1:])
        for column, number in zip(SHAPE.values(), shape, strict=True):
            yield Entry("", (model,), column, known(number))
        for task in results.tasks:
            if (model, task) in results.dtypes:
                score = results.accuracy(model, task, results.dtypes[model, task][0])
                reference = results.reference("9", "left", Place(model, task, "", "none"), "accuracy")
                yield Entry("", (model,), Column("accuracy", task), _cell_of(score, MISSING, reference))


def pair_table(results: Results, pair: Pair) -> Table:
    """Tables 2 to 7. Rows and methods without either side are left out."""
    printed = {key[4] for key in close_look() if key[0] == pair.number}
    groups = [group for group in results.groups() if not pair.as_printed or printed.intersection(group)]
    frame: list[Entry] = []
    shown_groups = set()
    equal: dict[Place, list[bool]] = {}
    for place in default_places(results):
        dtypes = results.dtypes[place.model, place.task]
        labels = (place.model, _default_precision(dtypes) or "–") if pair.precisions else (place.model,)
        for group in groups:
            for metric in shown(SETTINGS):
                cells = _sides(results, pair, group, place, metric)
                if cells:
                    shown_groups.add(group)
                    equal.setdefault(place, []).append(cells[0].value is not None and cells[0].value == cells[1].value)
                for side, cell in zip(pair.sides, cells, strict=False):
                    frame.append(Entry(place.task, labels, _metric_column(results, group, metric, side), cell))
    metrics = shown(SETTINGS)
    whole = len(shown_groups) * len(metrics)
    same = {(place.task, place.model) for place, own in equal.items() if all(own) and len(own) == whole}
    columns = [
        _metric_column(results, group, metric, side)
        for group in groups
        if group in shown_groups
        for metric in metrics
        for side in pair.sides
    ]
    return Table(
        f"table{pair.number}",
        f"Table {pair.number}. {pair.title}",
        f"Each pair is {pair.sides[0]}, {pair.sides[1]}; otherwise the setting of table 1." + pair.note,
        ("model", "default") if pair.precisions else ("model",),
        tuple(columns),
    ).filled(entry for entry in frame if not (pair.distinct and (entry.section, entry.labels[0]) in same))


def _sides(results: Results, pair: Pair, group: Group, place: Place, metric: str) -> list[Cell]:
    """The left and the right cell of a metric; none where either is undefined."""
    dtypes = results.dtypes[place.model, place.task]
    chosen = (dtypes[0], dtypes[0])
    if pair.precisions:
        default = _default_precision(dtypes)
        if default is None or DOUBLE not in dtypes:
            return []
        chosen = (default, DOUBLE)
    cells = []
    for dtype, side, changes in zip(chosen, ("left", "right"), (pair.left, pair.right), strict=True):
        own = first_defined(results, group, place._replace(dtype=dtype))
        cells.append(score_cell(results, own, metric, pair.printed or pair.number, side, **changes))
    return [] if any(cell.state == UNDEFINED for cell in cells) else cells


def _default_precision(dtypes: tuple[str, ...]) -> str | None:
    """The model's own: the first that is not double."""
    return next((dtype for dtype in dtypes if dtype != DOUBLE), None)


def default_places(results: Results) -> Iterator[Place]:
    """The rows of score tables in their order: a task and a model in its default precision, without a method."""
    for task in results.scored:
        for model in results.models:
            if (model, task) in results.dtypes:
                yield Place(model, task, results.dtypes[model, task][0], "")


def _defined_places(results: Results) -> Iterator[Place]:
    """Each of `default_places` with every method that its model has."""
    for place in default_places(results):
        for method in results.ordered_methods():
            own = place._replace(method=method)
            if results.state(own) != UNDEFINED:
                yield own


def first_defined(results: Results, group: Group, place: Place) -> Place:
    """`place` under the first of the group's methods that the model has."""
    places = [place._replace(method=method) for method in group]
    return next((own for own in places if results.state(own) != UNDEFINED), places[0])


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
    return _cell_of(results.score(place, metric, **changes), UNDEFINED, reference)


def _cell_of(score: Score | None, otherwise: str, reference: float | None) -> Cell:
    if score is None:
        return Cell(state=otherwise)
    return Cell(score.value, DONE, score.n, reference=reference)


def _metric_column(results: Results, group: Group, metric: str, side: str = "") -> Column:
    """Percent is said by the caption, another unit by the number."""
    record = METRICS[metric]
    label = "/".join(results.label(method) for method in group)
    unit = "" if record.unit == "%" else f" {record.unit}"
    return Column(label, record.label, side, unit=unit)


def interval_cell(results: Results, place: Place, metric: str) -> Cell:
    """The default score with its interval."""
    cell = score_cell(results, place, metric, "1", "left")
    if cell.value is None:
        return cell
    low, high = interval_of(results.comparisons.get(place[:3]), place.method, metric)
    return replace(cell, low=low, high=high)


def over_cell(results: Results, place: Place, baseline: str, metric: str) -> Cell:
    """The difference from the baseline's score, on the samples both have where they were compared."""
    if place.method == baseline:
        return UNDEFINED_CELL
    ours = score_cell(results, place, metric, "", "")
    base = score_cell(results, place._replace(method=baseline), metric, "", "")
    if ours.value is None or base.value is None:
        states = [cell.state for cell in (ours, base) if cell.state != DONE]
        return Cell(state=states[0] if states else UNDEFINED)
    plain = known(ours.value - base.value)
    return difference_cell(results.comparisons.get(place[:3]), place.method, baseline, metric, plain)
