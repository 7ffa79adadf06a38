"""The list of methods and numbers that the first screen leaves out, with places and reasons."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from evaluation.report.overview.standings import DELTA, Board, OtherNumbers
from evaluation.report.results import CellKey, Results
from evaluation.report.table import DONE, UNDEFINED
from evaluation.scoring.faithfulness.scores import MEASURES
from evaluation.scoring.metrics import METRICS, lead

#: Reasons why a method is not on a board, in the order of the list.
_UNDEFINED = "not defined for"
_ROUNDING = "relevance of whole embeddings, positions included, is rounding error on"
_UNFINISHED = "not complete on"
_NOT_ASKED = "not in this run's config for"
_ONLY = "this run's config has it only for"


def left_out(results: Results, other_numbers: OtherNumbers, shown: Sequence[Board]) -> list[tuple[str, str]]:
    """(subject, where and why it is left out) for tasks, methods, numbers and samples that `shown` boards lack.

    `other_numbers` has what the first screen shows besides scores against evidence.
    """
    names = {(board.model, board.task): f"{board.model} · {board.task}" for board in shown}
    lines = []
    without = [task for task in results.tasks if task not in {board.task for board in shown}]
    if without:
        reason = f"no evidence is marked in their samples, so there is no {METRICS[lead()].label}; see Faithfulness"
        lines.append((f"Task{'s' * (len(without) > 1)} {', '.join(without)}", reason))
    for method in results.ordered_methods():
        reasons = _absences(results, method, shown)
        if reasons:
            absent = "; ".join(f"{reason} {', '.join(boards)}" for reason, boards in reasons.items())
            lines.append((results.label(method), absent))
    delta, controls = set(other_numbers.faithfulness), {cell[:2] for cell in other_numbers.verdicts}
    for title, key, measured in ((MEASURES[DELTA].label, "perturb", delta), ("Controls", "controls", controls)):
        coverage = _coverage(names, measured)
        if coverage:
            setting = f"the config's `{key}` sets models, tasks and methods"
            lines.append((title, f"{coverage}: {setting}"))
    for board in shown:
        if board.dropped:
            name = names[board.model, board.task]
            lines.append((name, f"{board.dropped} samples that some of the methods do not explain"))
    return lines


def _absences(results: Results, method: str, shown: Sequence[Board]) -> dict[str, list[str]]:
    """The boards that a method is not on, by reason; for models that do not support the method, the models."""
    reasons: dict[str, list[str]] = {_UNDEFINED: [], _ROUNDING: [], _UNFINISHED: [], _NOT_ASKED: []}
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
        elif results.is_noise(cell_key):
            reasons[_ROUNDING].append(name)
        else:
            reasons[_NOT_ASKED].append(name)
    present = [f"{board.model} · {board.task}" for board in shown if method in board.methods]
    if len(reasons[_NOT_ASKED]) > len(present) > 0:
        reasons[_ONLY] = present
        reasons[_NOT_ASKED] = []
    return {reason: list(dict.fromkeys(boards)) for reason, boards in reasons.items() if boards}


def _coverage(names: dict[tuple[str, str], str], measured: Collection[tuple[str, str]]) -> str:
    """The boards on which something was measured, or was not, whichever are fewer; empty if it was on all.

    `names` are the boards' names by (model, task).
    """
    known = [name for board, name in names.items() if board in measured]
    others = [name for board, name in names.items() if board not in measured]
    if not others:
        return ""
    if not known:
        return "not measured"
    return f"not on {', '.join(others)}" if len(others) <= len(known) else f"only on {', '.join(known)}"
