"""The answer of a run on its first screen: methods in order for each task, a sentence each, and what its words mean."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from statistics import fmean

from evaluation.report.render import number
from evaluation.report.results import Place, Results
from evaluation.report.table import Cell, Column, Row, Table
from evaluation.report.tables import interval_cell, over_cell
from evaluation.scoring.metrics import METRICS, lead
from lrp_core.method import Method

SURE = 0.05  # p of a difference that is told as one
LENGTH = 30  # tokens of the sample that costs are told for


@dataclass(frozen=True)
class Standing:
    """A method on a task: means over the models that have it."""

    task: str
    method: str
    value: float
    low: float | None  # means of the models' intervals, which is no narrower than the interval of the mean
    high: float | None
    over: float | None  # the difference from the baseline's mean over the same models
    clear: bool  # whether that differs from zero on every model (p after Holm)
    models: int
    cost: float  # passes of a sample: forwards, and a backward where the method follows gradients


def standings(results: Results) -> dict[str, list[Standing]]:
    """The methods of every task, the best first."""
    return {task: sorted(_of_task(results, task), key=lambda one: (-one.value, one.method)) for task in results.scored}


def leaderboard(results: Results) -> Table:
    """The standings as a table."""
    metric, base = METRICS[lead()], results.baseline
    columns = [Column("", "rank", digits=0), Column("", metric.label, unit=f" {metric.unit}")]
    if base is not None:
        columns.append(Column("", f"Δ {results.label(base)}", signed=True))
    columns += [Column("", "models", digits=0), Column("", "cost", digits=0)]
    rows = []
    for task, standing in standings(results).items():
        for rank, one in enumerate(standing, start=1):
            cells = [Cell(rank), Cell(one.value, low=one.low, high=one.high, mark="best" if rank == 1 else "")]
            if base is not None:
                cells.append(Cell(one.over))
            cells += [Cell(one.models), Cell(one.cost)]
            rows.append(Row(task, (results.label(one.method),), tuple(cells)))
    return Table(
        "leaderboard",
        "Leaderboard",
        f"{metric.label} of every method's default setting, its mean over models, with the mean of their 95 % "
        f"intervals; cost in passes of a sample of {LENGTH} tokens, as if methods shared none.",
        ("method",),
        tuple(columns),
        tuple(rows),
    )


def sentence(results: Results, one: Standing) -> str:
    """What a standing says, in words."""
    metric = METRICS[lead()]
    share = f"{number(one.value, 1)} {metric.unit}"
    said = f"Its most relevant token is evidence in {share} of the samples"
    if one.method == results.baseline:
        return f"{said}: what random relevance gives."
    if one.over is None:
        return f"{said}."
    weak = "" if one.clear and one.over > 0 else results.methods[one.method].weak
    if not round(one.over, 1):
        return " ".join(filter(None, (f"{said}, as random relevance does.", weak)))
    against = f"{number(abs(one.over), 1)} points {'above' if one.over > 0 else 'below'} random relevance"
    sure = "" if one.clear else ", not clearly on every model"
    return " ".join(filter(None, (f"{said}, {against}{sure}.", weak)))


def passes(method: Method) -> float:
    """Forwards and backwards of one sample."""
    return method.cost(LENGTH) + (method.rules is not None)


def glossary(results: Results) -> list[tuple[str, str]]:
    """(word, meaning) of the tasks, metrics and methods that are shown."""
    meanings = [(name, task.title) for name, task in results.tasks.items()]
    meanings += [(metric.label, _first_line(metric.function)) for metric in METRICS.values()]
    meanings += [(results.label(name), results.methods[name].about) for name in results.ordered_methods()]
    return [(word, meaning) for word, meaning in meanings if meaning]


def _of_task(results: Results, task: str) -> Iterator[Standing]:
    base = results.baseline
    for method in results.ordered_methods():
        places = [Place(model, task, dtypes[0], method) for (model, of), dtypes in results.dtypes.items() if of == task]
        cells = {place: interval_cell(results, place, lead()) for place in places}
        means = {place: cell.value for place, cell in cells.items() if cell.value is not None}
        if not means:
            continue
        over = [] if base in (None, method) else [over_cell(results, place, base, lead()) for place in means]
        value, difference = fmean(means.values()), _mean(cell.value for cell in over)
        low, high = _mean(cells[place].low for place in means), _mean(cells[place].high for place in means)
        clear = all(cell.p is not None and cell.p < SURE for cell in over)
        cost = passes(results.methods[method])
        yield Standing(task, method, value, low, high, difference, clear, len(means), cost)


def _mean(values: Iterable[float | None]) -> float | None:
    """The mean; None of no values, and where a value is not known."""
    numbers = list(values)
    return None if None in numbers or not numbers else fmean(number for number in numbers if number is not None)


def _first_line(function: object) -> str:
    return (inspect.getdoc(function) or "").split("\n")[0]
