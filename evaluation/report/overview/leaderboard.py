"""The boards of the first screen: for each model and task, the methods in groups that tests tell apart.

What the boards leave out, of methods and numbers, is listed with places and reasons.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
    DONE,
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
from closelook.evaluation.scoring.samples import NEAR_NOISE, NOISE
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
    unbeaten = () if faithful is None else faithful.groups(DELTA)[0]
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
                is_unbeaten=method in unbeaten,
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


def leaderboard(results: Results, other_numbers: OtherNumbers) -> Table:
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
    for board in boards(results, other_numbers):
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


def weak_points(results: Results, board: Board) -> Iterator[str]:
    """Yield a sentence for each method that is not significantly above chance here and whose record says why.

    Such a method does no better than chance on some models by its definition.
    """
    base = results.baseline
    compared = results.compared(board.model, board.task)
    if compared is None or base not in compared.methods:
        return
    above = compared.beats(lead(), METRICS[lead()].higher_is_better)[:, compared.methods.index(base)]
    for method, is_above in zip(compared.methods, above, strict=True):
        if results.methods[method].weak and not is_above:
            yield f"{results.label(method)}: {results.methods[method].weak}"


#: Reasons why a method is not on a board, in the order of the list.
_UNDEFINED = "not defined for"
_NOISE = {
    NOISE: "relevance of whole embeddings, positions included, is rounding error on",
    NEAR_NOISE: "relevance of whole embeddings, positions included, is so small that it may be rounding error on",
}
_UNFINISHED = "not complete on"
_NOT_ASKED = "not in this run's config for"
_ONLY = "this run's config has it only for"


def left_out(results: Results, other_numbers: OtherNumbers, shown: Sequence[Board]) -> list[tuple[str, str]]:
    """(subject, where and why it is left out) for tasks, methods, numbers and samples that `shown` boards lack.

    `other_numbers` has what the first screen shows besides scores against evidence.
    """
    names = {(board.model, board.task): f"{board.model} · {board.task}" for board in shown}
    lines = []
    unmarked = f"no evidence is marked in its samples, so there is no {METRICS[lead()].label}; see Faithfulness"
    for task, record in results.tasks.items():
        if record.evidence is None:
            lines.append((f"Task {task}", unmarked))
        elif task in other_numbers.uncompared:
            lines.append((f"Task {task}", f"no methods are compared: {other_numbers.uncompared[task]}"))
    for method in results.ordered_methods():
        reasons = _absences(results, method, shown)
        if reasons:
            absent = "; ".join(f"{reason} {', '.join(boards)}" for reason, boards in reasons.items())
            lines.append((results.label(method), absent))
    if other_numbers.unfaithful:
        lines.append((MEASURES[DELTA].label, _unmeasured(names, other_numbers.unfaithful)))
    if other_numbers.unverified:
        lines.append(("Controls", _unmeasured(names, other_numbers.unverified)))
    for board in shown:
        if board.dropped:
            name = names[board.model, board.task]
            lines.append((name, f"{board.dropped} samples that some of the methods do not explain"))
    return lines


def _absences(results: Results, method: str, shown: Sequence[Board]) -> dict[str, list[str]]:
    """The boards that a method is not on, by reason; for models that do not support the method, the models."""
    reasons: dict[str, list[str]] = {reason: [] for reason in (_UNDEFINED, *_NOISE.values(), _UNFINISHED, _NOT_ASKED)}
    for board in shown:
        if method in board.methods:
            continue
        name = f"{board.model} · {board.task}"
        cell_key = CellKey(board.model, board.task, results.dtypes[board.model, board.task][0], method)
        state = results.state(cell_key)
        if (board.model, method) in results.undefined:
            reasons[_UNDEFINED].append(board.model)
        elif state not in (DONE, UNDEFINED):
            reasons[_UNFINISHED].append(name)
        elif noise := results.noise(cell_key):
            reasons[_NOISE[noise]].append(name)
        else:
            reasons[_NOT_ASKED].append(name)
    present = [f"{board.model} · {board.task}" for board in shown if method in board.methods]
    if len(reasons[_NOT_ASKED]) > len(present) > 0:
        reasons[_ONLY] = present
        reasons[_NOT_ASKED] = []
    return {reason: list(dict.fromkeys(boards)) for reason, boards in reasons.items() if boards}


def _unmeasured(names: Mapping[tuple[str, str], str], reasons: Mapping[tuple[str, str], str]) -> str:
    """The boards on which something was not measured, by reason. Both are by (model, task): names and reasons.

    >>> names = {("gpt2", "sva"): "gpt2 · sva", ("bert", "sva"): "bert · sva"}
    >>> _unmeasured(names, {("gpt2", "sva"): "not asked for"})
    'not on gpt2 · sva: not asked for'
    """
    boards: dict[str, list[str]] = {}
    for board, reason in reasons.items():
        boards.setdefault(reason, []).append(names[board])
    if len(boards) == 1 and len(reasons) == len(names):
        return f"not measured: {next(iter(boards))}"
    return "; ".join(f"not on {', '.join(unmeasured)}: {reason}" for reason, unmeasured in boards.items())
