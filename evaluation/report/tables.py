"""Tables 1 and 9 of Close Look, from results, and with those of two settings all that are made of scores."""

from __future__ import annotations

from dataclasses import replace

from evaluation.report.pair_tables import PAIRS, pair_table
from evaluation.report.results import Place, Results
from evaluation.report.score_cells import (
    cell_of,
    first_defined,
    group_label,
    marked,
    metric_column,
    score_cell,
    tasks_and_models,
)
from evaluation.report.table import DONE, MISSING, UNDEFINED, Cell, Column, Row, Table, with_noise_told
from evaluation.scoring.metrics import METRICS, OVERVIEW, lead, shown
from evaluation.scoring.statistics import TEST


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
    for task, model in tasks_and_models(results):
        places = [first_defined(results, group, model, task, results.dtypes[model, task][0]) for group in groups]
        by_metric = [marked([score_cell(results, place, m, "1", "left") for place in places], m) for m in metrics]
        rows.append(Row(task, (model,), tuple(cell for cells in zip(*by_metric, strict=True) for cell in cells)))
    return Table(
        "table1",
        "Table 1. Overview",
        f"Contrastive explanations, full embeddings, no special tokens{_scopes(results)}. "
        "Percent, over correctly predicted samples. The best of a row is bold, the second underlined.",
        ("model",),
        tuple(metric_column(group_label(results, group), metric) for group in groups for metric in metrics),
        tuple(rows),
    )


def beside_random(results: Results) -> Table:
    """Table 1 with a method a row, every metric, its interval, and its difference from the baseline's relevance."""
    rows, base = [], results.baseline
    for task, model in tasks_and_models(results):
        for method in results.ordered_methods():
            place = Place(model, task, results.dtypes[model, task][0], method)
            if results.state(place) != UNDEFINED:
                cells = [interval_cell(results, place, m) for m in METRICS]
                over = [] if base is None else [over_cell(results, place, base, m) for m in METRICS]
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
    for task, model in tasks_and_models(results):
        place = Place(model, task, results.dtypes[model, task][0], "")
        for method in methods:
            if results.state(place._replace(method=method)) != UNDEFINED:
                cells = [over_cell(results, place._replace(method=method), other, metric) for other in methods]
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


def accuracies(results: Results) -> Table:
    """Table 9: the models, and how often the target's logit is larger than the foil's."""
    rows = []
    for model in results.models:
        size = results.sizes.get(model)
        shape = (None,) * 4 if size is None else (size.parameters / 1e6, *size[1:])
        cells = [Cell(state=UNDEFINED) if value is None else Cell(value) for value in shape]
        for task in results.tasks:
            if (model, task) in results.dtypes:
                score = results.accuracy(model, task, results.dtypes[model, task][0])
                reference = results.reference("9", "left", Place(model, task, "", "none"), "accuracy")
                cells.append(cell_of(score, DONE if score else MISSING, reference))
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


def interval_cell(results: Results, place: Place, metric: str) -> Cell:
    """The default score with its interval."""
    cell = score_cell(results, place, metric, "1", "left")
    comparison = results.comparisons.get(place[:3])
    at = comparison.at(place.method, metric) if comparison else None
    if comparison is None or at is None or cell.value is None:
        return cell
    return replace(cell, low=float(comparison.low[at]), high=float(comparison.high[at]))


def over_cell(results: Results, place: Place, baseline: str, metric: str) -> Cell:
    """The difference from the baseline's score, on the samples both have where they were compared."""
    ours = score_cell(results, place, metric, "", "")
    base = score_cell(results, place._replace(method=baseline), metric, "", "")
    if place.method == baseline or ours.value is None or base.value is None:
        return Cell(state=UNDEFINED if place.method == baseline else _why_not(ours, base))
    comparison = results.comparisons.get(place[:3])
    at, other = (comparison.at(place.method, metric), comparison.at(baseline, metric)) if comparison else (None, None)
    if comparison is None or at is None or other is None:
        return Cell(ours.value - base.value)
    pair = (at[0], *other)  # method, baseline, metric
    return Cell(
        float(comparison.mean[at] - comparison.mean[other]),
        n=comparison.n,
        low=float(comparison.difference_low[pair]),
        high=float(comparison.difference_high[pair]),
        p=float(comparison.p[pair]),
    )


def _why_not(*cells: Cell) -> str:
    """Why a difference cannot be told."""
    return next((cell.state for cell in cells if cell.state != DONE), UNDEFINED)


def _scopes(results: Results) -> str:
    """Where metrics look at part of the text only, as the end of a list."""
    return "".join(f", on {name} the {task.scope} only" for name, task in results.tasks.items() if task.scope)
