"""The tables of scores against evidence: tables 1 to 7 and 9 of Close Look."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import groupby, product, zip_longest

from closelook.evaluation.report.drawing import COLOURS, POINT, Line, Panel, Plot
from closelook.evaluation.report.page import Figure
from closelook.evaluation.report.results import CellKey, Results, Score, close_look
from closelook.evaluation.report.table import (
    BOLD,
    DONE,
    MISSING,
    SMALLEST_ROW,
    UNDEFINED,
    UNDEFINED_CELL,
    UNSEEN,
    Cell,
    Column,
    Entry,
    Table,
    compared_cell,
    difference_cell,
    fills,
    known,
    marked_if_best,
    row_of,
    smallest_differences,
)
from closelook.evaluation.scoring.metrics import METRICS, OVERVIEW, SETTINGS, lead, shown

DOUBLE = "float64"
CHANCE = (
    "Random is the expected score of random relevance. It is exact for each sample; for a metric that depends on the "
    "size of relevance (IoU soft), it is a mean over draws."
)
Group = tuple[str, ...]  # methods that share a column


@dataclass(frozen=True)
class Pair:
    """The specification of a table that shows two settings side by side."""

    number: str  # of Close Look's table
    title: str
    sides: tuple[str, str]  # names of the two settings
    changed: str | None = None  # the part of the default variant that differs; None: the precision
    values: tuple[str, str] | None = None  # of this part; None: those that name the sides
    as_printed: bool = False  # only the methods that Close Look's table has
    printed: str | None = None  # another table of Close Look that has the numbers
    distinct: bool = False  # leave out rows whose two sides are equal in all cells
    note: str = ""


NO_POSITIONS = " Models whose embeddings are token embeddings only have no choice, and are left out."
TWICE = " Close Look prints table 6 again under this number."
FULL, EMBEDDINGS = "Full against partial embeddings", (("full", "partial"), "embedding")
EVERY = f"{FULL}, every method that offers both"
PAIRS = (
    Pair("2", "Contrastive against target explanations", ("contrastive", "target"), "explanation"),
    Pair("3", "Special tokens", ("without", "with"), "tokens", ("non_special", "all")),
    Pair("4", "Context only against full question", ("context", "full"), "scope"),
    Pair("5", "Precision", ("default", DOUBLE), note=" The row names the default precision."),
    Pair("6", FULL, *EMBEDDINGS, as_printed=True, distinct=True, note=NO_POSITIONS),
    Pair("7", EVERY, *EMBEDDINGS, printed="6", distinct=True, note=NO_POSITIONS + TWICE),
)


def score_tables(results: Results) -> list[Table]:
    """All tables of scores, in the paper's order."""
    pairs = [pair_table(results, pair) for pair in PAIRS]
    return [overview(results), beside_random(results), *pairs, accuracies(results)]


def overview(results: Results) -> Table:
    """Table 1: a row for each model in the default setting, a column for each metric and group of methods.

    A cell holds the first method of its group that is defined for the model.
    """
    frame = []
    for cell_key in default_cell_keys(results):
        compared = results.comparisons.get(cell_key[:3])
        for group in results.groups():
            of_method = first_defined(results, group, cell_key)
            for metric in shown(OVERVIEW):
                cell = score_cell(results, of_method, metric, "1", "left")
                cell = marked_if_best(cell, compared, of_method.method, metric, METRICS[metric].higher_is_better)
                frame.append(Entry(cell_key.task, (cell_key.model,), _metric_column(results, group, metric), cell))
    scopes = "".join(f", on {name} the {task.scope} only" for name, task in results.tasks.items() if task.scope)
    return Table(
        "table1",
        "Table 1. Overview",
        f"Contrastive explanations, full embeddings, no special tokens{scopes}. "
        f"Percent, over correctly predicted samples. {CHANCE} {BOLD}",
        ("model",),
    ).filled(frame)


BESIDE_RANDOM = Table(
    "table1_random",
    "Table 1, beside random",
    "The setting of table 1, with a row for each method. Numbers with 95 % intervals are over the samples that all "
    f"methods have. {CHANCE} Δ is the difference from random: * p < 0.05, ** p < 0.01 (PG and PG2 by the exact "
    "distribution of random relevance's hits, adjusted by Holm's method over the methods of a model and task; other "
    f"metrics, and rows of noise, are not tested). {UNSEEN}",
    ("model", "method"),
)


@fills(BESIDE_RANDOM)
def beside_random(results: Results) -> Iterator[Entry]:
    """Table 1 with every metric, its interval, and its difference from random relevance: a row for each method.

    The smallest detectable differences follow the methods of a model and task.
    """
    base, measures = results.baseline, {name: Column(metric.label, metric.unit) for name, metric in METRICS.items()}
    places = list(_defined_cell_keys(results))
    for cell_key, following in zip_longest(places, places[1:]):
        row = (cell_key.task, (cell_key.model, results.label(cell_key.method)))
        for name, metric in METRICS.items():
            yield Entry(*row, measures[name], interval_cell(results, cell_key, name))
            if base is not None and metric.is_compared:
                column = Column(metric.label, f"Δ {results.label(base)}", signed=True)
                yield Entry(*row, column, over_cell(results, cell_key, base, name))
        if following is None or following[:2] != cell_key[:2]:
            yield from smallest_differences(
                cell_key.task, (cell_key.model,), measures, results.comparisons.get(cell_key[:3])
            )


GLANCE = Plot(
    "glance",
    "Pointing game at a glance",
    "How often the most relevant token is evidence, with 95 % intervals. Random is the expected value of random "
    "relevance. Table 1, beside random, has the numbers.",
    ("", ""),
    alike=False,
    tabled=True,
)


def glance_figure(beside: Table, results: Results) -> list[Figure]:
    """The leading metric of `beside`, the filled table BESIDE_RANDOM: a panel for each task, a point for each row."""
    metric, models = METRICS[lead()], list(results.models)
    panels = []
    for task, rows in groupby(beside.rows, key=lambda row: row.section):
        known = [row for row in rows if row.cells[0].value is not None and row.labels[1] != SMALLEST_ROW]
        if not known:
            continue
        methods = list(dict.fromkeys(row.labels[1] for row in known))
        lines = []
        for row in known:
            (model, method), cell = row.labels, row.cells[0]
            y = methods.index(method) + 0.7 * (models.index(model) + 0.5) / len(models) - 0.35
            look = {"color": COLOURS[models.index(model) % len(COLOURS)], "markersize": 4} | POINT
            value = math.nan if cell.value is None else cell.value
            ends = [value if end is None else end for end in (cell.low, cell.high)]
            lines.append(Line(model, [value], [y], look, bars=[(ends, [y, y], {"linewidth": 0.9})]))
        ticks = {"yticks": range(len(methods)), "yticklabels": methods, "ylim": (len(methods) - 0.5, -0.5)}
        height = 0.8 + 0.08 * len(methods) * max(2, len(models))
        panels.append(Panel(f"{task} · {metric.label}, {metric.unit}", lines, ticks | {"xlim": (-4, 104)}, height))
    return GLANCE.figures(panels, {})


SHAPE = {name: Column("model", name, digits=0) for name in ("parameters", "layers", "heads", "hidden size")}
SHAPE["parameters"] = replace(SHAPE["parameters"], digits=2, unit=" M")


def accuracies(results: Results) -> Table:
    """Table 9: the size of each model, and the share of each task's samples that it predicts correctly."""
    tasks = {task: Column("accuracy", task) for task in results.tasks}
    frame: list[Entry] = []
    for model in results.models:
        size = results.sizes.get(model)
        shape = (None,) * len(SHAPE) if size is None else (size.parameters / 1e6, *size[1:])
        frame += row_of("", (model,), SHAPE.values(), map(known, shape))
        for task, column in tasks.items():
            if (model, task) in results.dtypes:
                score = results.accuracy(model, task, results.dtypes[model, task][0])
                reference = results.reference("9", "left", CellKey(model, task, "", "none"), "accuracy")
                frame.append(Entry("", (model,), column, _cell_of(score, MISSING, reference)))
    return Table(
        "table9",
        "Table 9. Models and prediction accuracy",
        "Accuracy is the share of samples that the model predicts correctly, in percent: the target's logit is above "
        "the foil's or, where the model's own prediction is explained, that prediction is the gold label.",
        ("model",),
        (*SHAPE.values(), *tasks.values()),
    ).filled(frame)


def pair_table(results: Results, pair: Pair) -> Table:
    """Tables 2 to 7. Rows and methods for which a side is undefined are left out."""
    printed = {key[4] for key in close_look() if key[0] == pair.number}
    groups = [group for group in results.groups() if not pair.as_printed or printed.intersection(group)]
    shown_groups: set[Group] = set()
    rows: dict[CellKey, dict[Column, Cell]] = {}
    for cell_key in default_cell_keys(results):
        rows[cell_key] = {}
        for group, metric in product(groups, shown(SETTINGS)):
            cells = _sides(results, pair, group, cell_key, metric)
            for side, cell in zip(pair.sides, cells, strict=False):
                rows[cell_key][_metric_column(results, group, metric, side)] = cell
                shown_groups.add(group)
    places = product((group for group in groups if group in shown_groups), shown(SETTINGS), pair.sides)
    columns = [_metric_column(results, *place) for place in places]
    frame: list[Entry] = []
    for cell_key, row in rows.items():
        values = [cell.value for cell in row.values()]
        alike = len(row) == len(columns) and None not in values and values[::2] == values[1::2]
        if not (pair.distinct and alike):
            dtypes = results.dtypes[cell_key.model, cell_key.task]
            default = (_default_precision(dtypes) or "–",) if pair.changed is None else ()
            frame += row_of(cell_key.task, (cell_key.model, *default), row, row.values())
    return Table(
        f"table{pair.number}",
        f"Table {pair.number}. {pair.title}",
        f"The two columns of a metric are {pair.sides[0]} and {pair.sides[1]}; otherwise the setting of table 1."
        + pair.note,
        ("model", "default") if pair.changed is None else ("model",),
        tuple(columns),
    ).filled(frame)


def _sides(results: Results, pair: Pair, group: Group, cell_key: CellKey, metric: str) -> list[Cell]:
    """The left and the right cell of a metric; an empty list if either is undefined."""
    dtypes = results.dtypes[cell_key.model, cell_key.task]
    changed = pair.changed
    if changed is not None:
        variants = [(dtypes[0], {changed: value}) for value in pair.values or pair.sides]
    elif DOUBLE in dtypes and (default := _default_precision(dtypes)) is not None:
        variants = [(default, {}), (DOUBLE, {})]
    else:
        return []
    cells = []
    for (dtype, changes), side in zip(variants, ("left", "right"), strict=True):
        of_method = first_defined(results, group, cell_key._replace(dtype=dtype))
        cells.append(score_cell(results, of_method, metric, pair.printed or pair.number, side, **changes))
    return [] if any(cell.state == UNDEFINED for cell in cells) else cells


def _default_precision(dtypes: tuple[str, ...]) -> str | None:
    """The first precision of a model that is not double."""
    return next((dtype for dtype in dtypes if dtype != DOUBLE), None)


def default_cell_keys(results: Results) -> Iterator[CellKey]:
    """The rows of score tables in their order: a task and a model in its default precision, without a method."""
    for task in results.scored:
        for model in results.models:
            if (model, task) in results.dtypes:
                yield CellKey(model, task, results.dtypes[model, task][0], "")


def _defined_cell_keys(results: Results) -> Iterator[CellKey]:
    """Each of `default_cell_keys` with every method that is defined for its model."""
    for row in default_cell_keys(results):
        for method in results.ordered_methods():
            cell_key = row._replace(method=method)
            if results.state(cell_key) != UNDEFINED:
                yield cell_key


def first_defined(results: Results, group: Group, cell_key: CellKey) -> CellKey:
    """`cell_key` with the first method of a group that is defined for its model; with the first of all if none is."""
    places = [cell_key._replace(method=method) for method in group]
    return next((of_method for of_method in places if results.state(of_method) != UNDEFINED), places[0])


def score_cell(results: Results, cell_key: CellKey, metric: str, table: str, side: str, **changes: str) -> Cell:
    """The score of the default variant with `changes`, or the reason that there is none.

    `table` and `side` name the place of Close Look's number for the cell, which becomes the reference.
    """
    state = results.state(cell_key)
    if changes and not results.offers(cell_key.task, cell_key.method, changes):
        state = UNDEFINED
    if state == DONE:
        state = results.noise(cell_key, **changes) or DONE
    if state != DONE:
        return Cell(state=state)
    reference = results.reference(table, side, cell_key, metric)
    return _cell_of(results.score(cell_key, metric, **changes), UNDEFINED, reference)


def _cell_of(score: Score | None, otherwise: str, reference: float | None) -> Cell:
    """The cell of a score; a cell in the state `otherwise` without a score."""
    if score is None:
        return Cell(state=otherwise)
    return Cell(score.value, DONE, score.n, reference=reference)


def _metric_column(results: Results, group: Group, metric: str, side: str = "") -> Column:
    """The column of a metric for a group of methods; cells show the unit unless it is percent, which captions name."""
    record = METRICS[metric]
    label = "/".join(results.label(method) for method in group)
    unit = "" if record.unit == "%" else f" {record.unit}"
    return Column(label, record.label, side, unit=unit)


def interval_cell(results: Results, cell_key: CellKey, metric: str) -> Cell:
    """The default score with its interval, over the samples that all compared methods have if it is compared."""
    cell = score_cell(results, cell_key, metric, "1", "left")
    compared = compared_cell(results.comparisons.get(cell_key[:3]), cell_key.method, metric)
    if cell.value is None or compared.value is None:
        return cell
    return replace(compared, reference=cell.reference)


def over_cell(results: Results, cell_key: CellKey, other: str, metric: str) -> Cell:
    """The method's score minus that of `other`: on common samples if both were compared, else of their two means.

    Undefined for `other` itself. If a score is missing, the cell has that score's state.
    """
    if cell_key.method == other:
        return UNDEFINED_CELL
    score = score_cell(results, cell_key, metric, "", "")
    base = score_cell(results, cell_key._replace(method=other), metric, "", "")
    if score.value is None or base.value is None:
        states = [cell.state for cell in (score, base) if cell.state != DONE]
        return Cell(state=states[0] if states else UNDEFINED)
    of_means = known(score.value - base.value)
    return difference_cell(results.comparisons.get(cell_key[:3]), cell_key.method, other, metric, of_means)
