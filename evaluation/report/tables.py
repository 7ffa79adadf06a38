"""Tables 1 to 7 and 9 of Close Look, from results."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from evaluation.report.results import Place, Results, Score, close_look
from evaluation.report.table import DONE, MISSING, NOISE, UNDEFINED, Cell, Column, Row, Table, mark, with_noise_told
from evaluation.scoring.metrics import METRICS, OVERVIEW, SETTINGS, lead, shown
from evaluation.scoring.statistics import TEST

DOUBLE = "float64"
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


def score_tables(results: Results) -> list[Table]:
    """All tables that are made of scores, in the paper's order."""
    pairs = [pair_table(results, pair) for pair in PAIRS]
    tables = [overview(results), beside_random(results), against_each_other(results), *pairs, accuracies(results)]
    return [with_noise_told(table) for table in tables]


def overview(results: Results) -> Table:
    """Table 1: every method in its default setting."""
    metrics = shown(OVERVIEW)
    groups = results.groups()
    rows = []
    for task, model in _places(results):
        places = [_defined(results, group, model, task, results.dtypes[model, task][0]) for group in groups]
        by_metric = [_marked([_cell(results, place, m, "1", "left") for place in places], m) for m in metrics]
        rows.append(Row(task, (model,), tuple(cell for cells in zip(*by_metric, strict=True) for cell in cells)))
    return Table(
        "table1",
        "Table 1. Overview",
        f"Contrastive explanations, full embeddings, no special tokens{_scopes(results)}. "
        "Percent, over correctly predicted samples. The best of a row is bold, the second underlined.",
        ("model",),
        tuple(_column(_name(results, group), metric) for group in groups for metric in metrics),
        tuple(rows),
    )


def beside_random(results: Results) -> Table:
    """Table 1 with a method a row, every metric, its interval, and its difference from the baseline's relevance."""
    rows, base = [], results.baseline
    for task, model in _places(results):
        for method in results.ordered_methods():
            place = Place(model, task, results.dtypes[model, task][0], method)
            if results.state(place) != UNDEFINED:
                cells = [_interval(results, place, m) for m in METRICS]
                over = [] if base is None else [_over(results, place, base, m) for m in METRICS]
                both = tuple(cell for pair in zip(cells, *filter(None, [over]), strict=True) for cell in pair)
                rows.append(Row(task, (model, results.label(method)), both))
    over_base = [] if base is None else [f"Δ {results.label(base)}"]
    return Table(
        "table1_random",
        "Table 1, beside random",
        "The setting of table 1 with a method a row and 95 % bootstrap intervals. Δ is the difference from "
        "random relevance on the same samples: * p < 0.05, ** p < 0.01 (paired sign-flip test, Holm over pairs).",
        ("model", "method"),
        tuple(
            Column(metric.label, side, signed=side != metric.unit)
            for metric in METRICS.values()
            for side in (metric.unit, *over_base)
        ),
        tuple(rows),
    )


def against_each_other(results: Results) -> Table:
    """Every method minus every other, on the same samples."""
    methods, metric = results.ordered_methods(), lead()
    rows = []
    for task, model in _places(results):
        place = Place(model, task, results.dtypes[model, task][0], "")
        for method in methods:
            if results.state(place._replace(method=method)) != UNDEFINED:
                cells = [_over(results, place._replace(method=method), other, metric) for other in methods]
                rows.append(Row(task, (model, results.label(method)), tuple(cells)))
    return Table(
        "table1_pairs",
        "Table 1, methods against each other",
        f"{METRICS[metric].label} of the row's method minus the column's, in points, on samples that both explain. "
        f"* p < 0.05, ** p < 0.01: {TEST}.",
        ("model", "method"),
        tuple(Column("minus", results.label(method), signed=True) for method in methods),
        tuple(rows),
    )


def pair_table(results: Results, pair: Pair) -> Table:
    """Tables 2 to 7. Rows and methods without either side are left out."""
    metrics = shown(SETTINGS)
    printed = {key[4] for key in close_look() if key[0] == pair.number}
    groups = [group for group in results.groups() if not pair.as_printed or printed.intersection(group)]
    found = {
        (task, model): {group: _sides(results, pair, group, model, task, metrics) for group in groups}
        for task, model in _places(results)
    }
    kept = [g for g in groups if any(c.state != UNDEFINED for cells in found.values() for c in cells[g])]
    return Table(
        f"table{pair.number}",
        f"Table {pair.number}. {pair.title}",
        f"Each pair is {pair.sides[0]}, {pair.sides[1]}; otherwise the setting of table 1; the better one is bold."
        + pair.note,
        ("model", "default") if pair.precisions else ("model",),
        tuple(_column(_name(results, g), m, side) for g in kept for m in metrics for side in pair.sides),
        tuple(
            Row(task, _labels(results, pair, model, task), tuple(cell for group in kept for cell in cells[group]))
            for (task, model), cells in found.items()
            if any(cell.state != UNDEFINED for group in kept for cell in cells[group])
            and not (pair.distinct and all(_same(cells[group]) for group in kept))
        ),
    )


def accuracies(results: Results) -> Table:
    """Table 9: the models, and how often the target's logit is larger than the foil's."""
    rows = []
    for model in results.models:
        size = results.sizes.get(model)
        shape = (None,) * 4 if size is None else (size.parameters / 1e6, *size[1:])
        cells = [Cell(state=UNDEFINED) if value is None else Cell(value) for value in shape]
        for task in results.tasks:
            if (model, task) in results.dtypes:
                found = results.accuracy(model, task, results.dtypes[model, task][0])
                reference = results.reference("9", "left", Place(model, task, "", "none"), "accuracy")
                cells.append(_of(found, DONE if found else MISSING, reference))
            else:
                cells.append(Cell(state=UNDEFINED))
        rows.append(Row("", (model,), tuple(cells)))
    return Table(
        "table9",
        "Table 9. Models and prediction accuracy",
        "Accuracy is the share of samples whose target has a larger logit than the foil, percent.",
        ("model",),
        (
            Column("model", "parameters", digits=2, unit=" M"),
            *(Column("model", name, digits=0) for name in ("layers", "heads", "hidden size")),
            *(Column("accuracy", task) for task in results.tasks),
        ),
        tuple(rows),
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
            _cell(results, _defined(results, group, model, task, dtype), metric, printed, side, **changes)
            for dtype, side, changes in zip(chosen, ("left", "right"), (pair.left, pair.right), strict=True)
        ]
        one_sided = any(cell.state == UNDEFINED for cell in both)
        cells += [Cell(state=UNDEFINED)] * 2 if one_sided else _marked(both, metric, second=False)
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


def _cell(results: Results, place: Place, metric: str, table: str, side: str, **changes: str) -> Cell:
    state = results.state(place)
    if changes and not results.offers(place.task, place.method, changes):
        state = UNDEFINED
    if state == DONE and results.is_noise(place, **changes):
        state = NOISE
    if state != DONE:
        return Cell(state=state)
    reference = results.reference(table, side, place, metric)
    found = results.score(place, metric, **changes)
    return _of(found, DONE if found else UNDEFINED, reference)


def _of(score: Score | None, state: str, reference: float | None = None) -> Cell:
    if score is None:
        return Cell(state=state)
    return Cell(score.value, state, score.n, reference=reference)


def _interval(results: Results, place: Place, metric: str) -> Cell:
    """The default score with its interval."""
    cell = _cell(results, place, metric, "1", "left")
    found = results.comparisons.get(place[:3])
    at = found.at(place.method, metric) if found else None
    if found is None or at is None or cell.value is None:
        return cell
    return replace(cell, low=float(found.low[at]), high=float(found.high[at]))


def _over(results: Results, place: Place, baseline: str, metric: str) -> Cell:
    """The difference from the baseline's score, on the samples both have where they were compared."""
    ours = _cell(results, place, metric, "", "")
    base = _cell(results, place._replace(method=baseline), metric, "", "")
    if place.method == baseline or ours.value is None or base.value is None:
        return Cell(state=UNDEFINED if place.method == baseline else _why_not(ours, base))
    found = results.comparisons.get(place[:3])
    at, other = (found.at(place.method, metric), found.at(baseline, metric)) if found else (None, None)
    if found is None or at is None or other is None:
        return Cell(ours.value - base.value)
    pair = (at[0], *other)  # method, baseline, metric
    return Cell(
        float(found.mean[at] - found.mean[other]),
        n=found.n,
        low=float(found.difference_low[pair]),
        high=float(found.difference_high[pair]),
        p=float(found.p[pair]),
    )


def _why_not(*cells: Cell) -> str:
    """Why a difference cannot be told."""
    return next((cell.state for cell in cells if cell.state != DONE), UNDEFINED)


def _places(results: Results) -> Iterator[tuple[str, str]]:
    return ((task, model) for task in results.scored for model in results.models if (model, task) in results.dtypes)


def _column(group: str, metric: str, side: str = "") -> Column:
    """Percent is said by the caption, another unit by the number."""
    unit = METRICS[metric].unit
    return Column(group, METRICS[metric].label, side, unit="" if unit == "%" else f" {unit}")


def _marked(cells: Sequence[Cell], metric: str, second: bool = True) -> list[Cell]:
    return mark(cells, digits=1, second=second, lower=not METRICS[metric].higher_is_better)


def _name(results: Results, group: Group) -> str:
    return "/".join(results.label(method) for method in group)


def _scopes(results: Results) -> str:
    """Where metrics look at part of the text only, as the end of a list."""
    return "".join(f", on {name} the {task.scope} only" for name, task in results.tasks.items() if task.scope)


def _defined(results: Results, group: Group, model: str, task: str, dtype: str) -> Place:
    """The first of the group's methods that the model has."""
    places = [Place(model, task, dtype, method) for method in group]
    return next((place for place in places if results.state(place) != UNDEFINED), places[0])
