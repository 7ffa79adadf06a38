"""The boards of the first screen: for each model and task, the methods in groups that tests tell apart.

What the boards leave out is listed with the reasons.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from closelook.evaluation.report.overview.standings import (
    DELTA,
    Board,
    OtherNumbers,
    Seconds,
    Standing,
    Verdicts,
    conclusion,
    first_group,
)
from closelook.evaluation.report.results import CellKey, Methods, Results
from closelook.evaluation.report.table import (
    UNDEFINED,
    UNDEFINED_CELL,
    Cell,
    Column,
    Entry,
    Table,
    compared_cell,
    known,
    row_of,
)
from closelook.evaluation.scoring.faithfulness.scores import MEASURES
from closelook.evaluation.scoring.metrics import METRICS, lead
from closelook.evaluation.scoring.statistics import Comparison

FAITHFUL = (
    "area between two curves of the model's score, as tokens are removed from the least relevant on, and from the most "
    "relevant on; larger is more faithful, and random relevance has 0"
)


def boards(results: Results, other_numbers: OtherNumbers) -> list[Board]:
    """A board for each model and task whose methods were compared, in the order of tasks and models."""
    all_boards = []
    for task in results.scored:
        for model in results.models:
            compared = results.compared(model, task)
            if compared is not None:
                all_boards.append(_board(results, compared, other_numbers, model, task))
    return all_boards


def _board(results: Results, compared: Comparison, other_numbers: OtherNumbers, model: str, task: str) -> Board:
    """The board of a model and task, from the comparison of its methods."""
    faithful = other_numbers.faithfulness.get((model, task))
    standings = []
    for rank, group in enumerate(compared.groups(lead(), METRICS[lead()].higher_is_better), start=1):
        for method in group:
            cell = (model, task, method)
            standing = Standing(
                method,
                results.label(method),
                rank,
                evidence=compared_cell(compared, method, lead()),
                faithfulness=compared_cell(faithful, method, DELTA),
                seconds=other_numbers.seconds.get(cell),
                failed=other_numbers.verdicts.get(cell),
                fails_on=_failed_on(other_numbers.verdicts, method),
            )
            standings.append(standing)
    is_chance = results.baseline in [standing.method for standing in first_group(standings)]
    concluded = conclusion(results, model, task, standings, compared)
    return Board(model, task, standings, concluded, is_chance, _dropped(results, compared, model, task))


def _failed_on(verdicts: Verdicts, method: str) -> tuple[str, ...]:
    """Every "model · task" on which a method fails a control."""
    failed = (failure[:2] for failure, control in verdicts.items() if control and failure[2] == method)
    return tuple(f"{model} · {task}" for model, task in failed)


def _dropped(results: Results, compared: Comparison, model: str, task: str) -> int:
    """The number of samples of the method with most samples that the comparison does not hold."""
    most = 0
    for method in compared.methods:
        score = results.score(CellKey(model, task, results.dtypes[model, task][0], method), lead())
        most = max(most, 0 if score is None else score.n)
    return max(0, most - compared.n)


def leaderboard(shown: Sequence[Board]) -> Table:
    """All boards as one table, with a row for each method of a board."""
    metric, measure = METRICS[lead()], MEASURES[DELTA]
    columns = (
        Column("", "group", digits=0),
        Column("", metric.label, unit=f" {metric.unit}"),
        Column("", measure.label, digits=2),
        Column("", "ms a sample", significant=3),
        Column("", "fails"),
    )
    frame: list[Entry] = []
    for board in shown:
        for standing in board.standings:
            labels = (board.model, standing.label)
            milliseconds = None if standing.seconds is None else 1000 * standing.seconds
            failed = Cell(state=standing.failed) if standing.failed else UNDEFINED_CELL
            cells = (Cell(standing.group), standing.evidence, standing.faithfulness, known(milliseconds), failed)
            frame += row_of(board.task, labels, columns, cells)
    return Table(
        "leaderboard",
        "Leaderboard",
        f"Group 1 holds the methods that no other method is shown to beat by {metric.label} on the samples that all "
        "have (paired sign-flip test, p < .05 over all pairs together); group 2 holds those that only "
        f"methods of group 1 beat, and so on. {measure.label} is of relevance that explains the same number as "
        f"{metric.label}, under the first perturbation of the config. Intervals are 95 % intervals. Times are medians "
        "over the batches of this run, as if methods shared no pass.",
        ("model", "method"),
        columns,
    ).filled(frame)


def table_of(board: Board, ranking: Table) -> Table:
    """The rows of a board, from the leaderboard with all of them."""
    rows = [row for row in ranking.rows if (row.section, row.labels[0]) == (board.task, board.model)]
    return replace(
        ranking, name=f"board-{board.model}-{board.task}", title=f"{board.model} · {board.task}", rows=tuple(rows)
    )


def method_seconds(results: Results, rows: Iterable[Mapping[str, Any]]) -> Seconds:
    """Median seconds of a sample by (model, task, method), in the default precision of each model and task.

    `rows` are of the schema RUNTIME with the columns `model`, `task` and `dtype` added. The time of a method in a
    shared pass is the pass's forward plus the method's backward and aggregation.
    """
    return seconds_of(rows, {model_task: dtypes[0] for model_task, dtypes in results.dtypes.items()}, results.methods)


def seconds_of(rows: Iterable[Mapping[str, Any]], dtypes: Mapping[tuple[str, str], str], methods: Methods) -> Seconds:
    """`method_seconds` in the precision of each (model, task) in `dtypes`."""
    times: dict[tuple[str, ...], list[float]] = {}
    for row in rows:
        model, task = row["model"], row["task"]
        if row["dtype"] == dtypes.get((model, task)):
            times.setdefault((model, task, row["method"], row["stage"]), []).append(row["wall_s"] / row["batch"])
    median = {key: float(np.median(values)) for key, values in times.items()}
    seconds_of_method = {}
    for model, task in dtypes:
        for name, method in methods.items():
            parts = [median.get((model, task, name, stage)) for stage in ("backward", "aggregate")]
            shared = median.get((model, task, method.passes, "forward"))
            whole = median.get((model, task, name, "method"), median.get((model, task, method.passes, "method")))
            if shared is not None and None not in parts:
                seconds_of_method[model, task, name] = shared + sum(part for part in parts if part is not None)
            elif shared is None and whole is not None:
                seconds_of_method[model, task, name] = whole
    return seconds_of_method


def glossary(results: Results) -> list[tuple[str, str]]:
    """(word, meaning) of the shown tasks, metrics and methods; words without a meaning are left out."""
    meanings = [(name, task.title) for name, task in results.tasks.items()]
    for metric in METRICS.values():
        meanings.append((metric.label, (inspect.getdoc(metric.function) or "").partition("\n")[0]))
    meanings.append((MEASURES[DELTA].label, FAITHFUL))
    meanings += [(results.label(name), results.methods[name].about) for name in results.ordered_methods()]
    return [(word, meaning) for word, meaning in meanings if meaning]


def left_out(results: Results, shown: Sequence[Board]) -> list[tuple[str, str]]:
    """(subject, what it lacks, and why) for tasks without a board, and for methods and samples that a board lacks."""
    lines = []
    unmarked = f"no evidence is marked in its samples, so there is no {METRICS[lead()].label}; see Faithfulness"
    for task, record in results.tasks.items():
        if record.evidence is None:
            lines.append((f"Task {task}", unmarked))
        elif task not in {board.task for board in shown}:
            lines.append((f"Task {task}", "no methods are compared; Tables say what is missing"))
    for board in shown:
        absent = []
        for method in results.ordered_methods():
            if method not in board.methods:
                cell_key = CellKey(board.model, board.task, results.dtypes[board.model, board.task][0], method)
                state = results.noise(cell_key) or results.state(cell_key)
                if state != UNDEFINED:  # not a method of this model and task
                    absent.append(f"{results.label(method)} ({state})")
        if board.dropped:
            absent.append(f"{board.dropped} samples that some of the methods do not explain")
        if absent:
            lines.append((f"{board.model} · {board.task}", ", ".join(absent)))
    return lines
