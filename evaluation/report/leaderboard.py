"""The answer of a run on its first screen: for each model and task the methods in groups that tests tell apart."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import permutations

import numpy as np

from evaluation.report.render import number
from evaluation.report.results import Place, Results
from evaluation.report.table import DONE, UNDEFINED_CELL, Cell, Column, Entry, Table, interval_of, known
from evaluation.scoring.faithfulness import MEASURES
from evaluation.scoring.metrics import METRICS, lead
from evaluation.scoring.statistics import Comparison

DELTA = "delta_area"


@dataclass(frozen=True)
class Standing:
    """A method on a task of a model; cells without a value where nothing is known."""

    method: str
    group: int  # from 1: the methods that no other of the groups from here on beats
    evidence: Cell
    faithfulness: Cell
    is_faithful: bool  # no method is more faithful; False where that is not known
    seconds: float | None  # of a sample, as measured in this run
    failed: str | None = None  # the control that it fails, "" where it passes; None where none is made


@dataclass(frozen=True)
class Board:
    """The methods of a model on a task, by groups."""

    model: str
    task: str
    standings: Sequence[Standing]
    conclusion: str
    is_chance: bool = False  # random relevance is in the first group
    dropped: int = 0  # samples that a method explains and the comparison leaves out

    @property
    def first(self) -> list[Standing]:
        """The methods that no other beats."""
        return [one for one in self.standings if one.group == 1]

    @property
    def controls(self) -> str:
        """The verdict of controls on the first group, where none of it fails."""
        tried = [one for one in self.first if one.failed is not None]
        if not tried:
            return "–"
        return "passed" if len(tried) == len(self.first) else f"{len(tried)} tried: passed"

    @property
    def spans(self) -> dict[str, str]:
        """The least and the largest number of the first group, by column; – where nothing is known."""
        metric = METRICS[lead()]
        columns = {
            metric.label: ([one.evidence.value for one in self.first], "{:.0f}".format, metric.unit),
            MEASURES[DELTA].label: ([one.faithfulness.value for one in self.first], "{:.1f}".format, ""),
            "ms a sample": ([one.seconds for one in self.first], _milliseconds, ""),
        }
        return {name: _span(*column) for name, column in columns.items()}


def _milliseconds(seconds: float) -> str:
    """Two digits at least, and all that stand before the point."""
    return f"{1000 * seconds:.0f}" if seconds >= 0.01 else f"{1000 * seconds:.2g}"


def _span(values: Sequence[float | None], written: Callable[[float], str], unit: str) -> str:
    known = [value for value in values if value is not None]
    ends = dict.fromkeys(written(end) for end in (min(known), max(known))) if known else {}
    return f"{' to '.join(ends)} {unit}".strip() if ends else "–"


Verdicts = Mapping[tuple[str, str, str], str]  # the control that (model, task, method) fails; "" where it passes


@dataclass(frozen=True)
class Beyond:
    """Facts of the first screen beside scores, by model and task."""

    faithfulness: Mapping[tuple[str, str], Comparison] = field(default_factory=dict)
    seconds: Mapping[tuple[str, str, str], float] = field(default_factory=dict)  # of (model, task, method)
    verdicts: Verdicts = field(default_factory=dict)


def boards(results: Results, beyond: Beyond) -> list[Board]:
    """A board for each model and task of which methods were compared, in the order of tasks and models."""
    every = []
    for task in results.scored:
        for model in results.models:
            dtypes = results.dtypes.get((model, task))
            compared = results.comparisons.get((model, task, dtypes[0])) if dtypes else None
            if compared is not None and lead() in compared.metrics:
                every.append(_board(results, compared, beyond, model, task))
    return every


def _board(results: Results, compared: Comparison, beyond: Beyond, model: str, task: str) -> Board:
    faithful = beyond.faithfulness.get((model, task))
    most = set() if faithful is None else set(faithful.groups(DELTA)[0])
    standings = []
    for at, group in enumerate(compared.groups(lead(), METRICS[lead()].higher_is_better), start=1):
        for method in group:
            cells = _cell(compared, method, lead()), _cell(faithful, method, DELTA)
            seconds = beyond.seconds.get((model, task, method))
            failed = beyond.verdicts.get((model, task, method))
            standings.append(Standing(method, at, *cells, method in most, seconds, failed))
    sound = [one for one in standings if not _failed(beyond.verdicts, one.method)]
    concluded = conclusion(results, standings, compared, faithful, sound) + _failing(results, standings)
    concluded += _failing_elsewhere(results, standings, beyond.verdicts)
    concluded += _on_other_seeds(results, model, task, compared)
    is_chance = any(one.group == 1 and one.method == results.baseline for one in standings)
    return Board(model, task, standings, concluded, is_chance, _dropped(results, compared, model, task))


def _dropped(results: Results, compared: Comparison, model: str, task: str) -> int:
    """Samples that count for a method that is compared, and not in the comparison."""
    counts = [
        score.n
        for method in compared.methods
        if (score := results.score(Place(model, task, results.dtypes[model, task][0], method), lead())) is not None
    ]
    return max(0, max(counts, default=0) - compared.n)


def _on_other_seeds(results: Results, model: str, task: str, compared: Comparison) -> str:
    """A sentence on the differences that tests find here: those that models of other seeds show too, and the rest."""
    known = (
        results.comparisons.get((other, task, results.dtypes[other, task][0]))
        for other in results.seeds.get(model, ())
        if (other, task) in results.dtypes
    )
    others = [each for each in known if each is not None and lead() in each.metrics]
    methods = [name for name in compared.methods if all(name in each.methods for each in others)]
    claims = [pair for pair in permutations(methods, 2) if _beats(compared, *pair)] if others else []
    if not claims:
        return ""
    lost = [pair for pair in claims if not all(_beats(each, *pair) for each in others)]
    seeds = f"{len(others)} other seed{'s' * (len(others) > 1)}"
    counted = f" Of {len(claims)} differences among {', '.join(map(results.label, methods))}"
    if not lost:
        return f"{counted} all are found with {seeds} too."
    told = ", ".join(f"{results.label(better)} over {results.label(worse)}" for better, worse in lost)
    return f"{counted} {len(claims) - len(lost)} are found with {seeds} too; not with each: {told}."


def _beats(compared: Comparison, better: str, worse: str) -> bool:
    at, other = compared.methods.index(better), compared.methods.index(worse)
    return bool(compared.beats(lead(), METRICS[lead()].higher_is_better)[at, other])


def _failing(results: Results, standings: Sequence[Standing]) -> str:
    """A warning of methods of the first group that fail a control."""
    failing = [results.label(one.method) for one in standings if one.group == 1 and one.failed]
    return f" Beware: {', '.join(failing)} hardly depends on what the model has learnt." if failing else ""


def _failing_elsewhere(results: Results, standings: Sequence[Standing], verdicts: Verdicts) -> str:
    """A warning of methods of the first group that no control was tried on here, and that fail one elsewhere."""
    told = ""
    for one in standings:
        failed = _failed(verdicts, one.method) if one.group == 1 and one.failed is None else ()
        if failed:
            told += f" Beware: {results.label(one.method)} fails a control on {', '.join(failed)}."
    return told


def _failed(verdicts: Verdicts, method: str) -> list[str]:
    """The models and tasks where a method fails a control."""
    return [f"{model} · {task}" for (model, task, name), control in verdicts.items() if name == method and control]


def left_out(results: Results, beyond: Beyond) -> list[tuple[str, str]]:
    """What the boards leave out: (what, where and why) each."""
    shown = boards(results, beyond)
    names = {(board.model, board.task): f"{board.model} · {board.task}" for board in shown}

    def beside(places: Collection[tuple[str, str]], undefined: Collection[str] = ()) -> str:
        """The boards beside some places, and beside models; or where that is shorter, these places."""
        known = [name for place, name in names.items() if place in places]
        others = [name for place, name in names.items() if place not in places and place[0] not in undefined]
        if len(others) <= len(known):
            return f"not on {', '.join(others)}"
        return f"in this run only on {', '.join(known)}" if known else "not in this run"

    lines = []
    without = [task for task in results.tasks if task not in {board.task for board in shown}]
    if without:
        why = f"nobody marked what a method should find: no {METRICS[lead()].label}. Faithfulness has their curves"
        lines.append((_tasks(without), why))
    for method in results.ordered_methods():
        own = {(board.model, board.task) for board in shown if method in [one.method for one in board.standings]}
        undefined = dict.fromkeys(model for model, _ in names if (model, method) in results.undefined)
        reasons = [f"not defined for {', '.join(undefined)}"] if undefined else []
        if names.keys() - own - {place for place in names if place[0] in undefined}:
            reasons.append(beside(own, undefined))
        if reasons:
            lines.append((results.label(method), "; ".join(reasons)))
    measured = {MEASURES[DELTA].label: beyond.faithfulness, "Controls": {place[:2] for place in beyond.verdicts}}
    for title, places in measured.items():
        if names.keys() - places:
            lines.append((title, f"{beside(names.keys() & set(places))}"))
    for board in shown:
        if board.dropped:
            name = names[board.model, board.task]
            lines.append((name, f"{board.dropped} samples that some of the methods do not explain"))
    return lines


def _tasks(names: Sequence[str]) -> str:
    return f"Task{'s' * (len(names) > 1)} {', '.join(names)}"


def _cell(compared: Comparison | None, method: str, measure: str) -> Cell:
    at = None if compared is None else compared.at(method, measure)
    if compared is None or at is None:
        return known(None)
    low, high = interval_of(compared, method, measure)
    return Cell(float(compared.mean[at]), DONE, compared.n, low, high)


def conclusion(
    results: Results,
    standings: Sequence[Standing],
    compared: Comparison,
    faithful: Comparison | None,
    sound: Sequence[Standing],
) -> str:
    """The method to use here, and how sure that is: what the tests say, in a sentence or two.

    Of several methods one of the `sound` ones is preferred, which fail no control.
    """
    metric, at = METRICS[lead()], compared.metrics.index(lead())
    first = [one for one in standings if one.group == 1]
    others = len(standings) - len(first)
    smallest = float("nan") if compared.smallest is None else float(compared.smallest[at])
    counted = f"{compared.n} samples"
    if compared.clusters is not None:
        counted += f" in {compared.clusters} clusters"
    if not compared.is_tested:
        return f"Nothing is tested here: {counted} are too few."
    unseen = ""
    if np.isfinite(smallest):
        unseen = f" With {counted}, a difference of {number(smallest, 1)} points is found four times in five."
    if not others:
        return f"No method finds the evidence more often than another (every pair tested).{unseen}"
    rest = "the other method" if others == 1 else f"each of the {others} others"
    if len(first) == 1:
        best = f"It finds the evidence more often than {rest}"
        return f"{best} ({_share(first[0])}){_also_faithful(first[0], faithful)}.{unseen}"
    group = f"No test tells them apart; {rest} finds the evidence less often than at least one of them."
    if results.baseline in [one.method for one in first]:
        return f"{group} Random relevance is among them: by {metric.label}, no test tells them from chance.{unseen}"
    return f"{group}{_preferred(results, [one for one in first if one in sound])}{unseen}"


def _share(one: Standing) -> str:
    cell, metric = one.evidence, METRICS[lead()]
    low, high = (0.0 if end is None else end for end in (cell.low, cell.high))
    return f"{metric.label} {number(cell.value or 0.0, 1)} {metric.unit}, {number(low, 1)} to {number(high, 1)}"


def _also_faithful(best: Standing, faithful: Comparison | None) -> str:
    if faithful is None or best.faithfulness.value is None:
        return ""
    if best.is_faithful:
        return f", and no method is more faithful ({MEASURES[DELTA].label})"
    return f"; others are more faithful ({MEASURES[DELTA].label})"


def _preferred(results: Results, first: Sequence[Standing]) -> str:
    """Of methods of a group the one that no method beats in faithfulness; of several, or of none, the fastest."""
    faithful = [one for one in first if one.is_faithful]
    unbeaten = " that no method beats in faithfulness" if faithful else ""
    if len(faithful) == 1 < len(first):
        return f" The one of them{unbeaten} is {_timed(results, faithful[0])}."
    timed = [one for one in faithful or first if one.seconds is not None]
    if len(timed) < 2:
        return ""
    return f" The fastest of them{unbeaten} is {_timed(results, min(timed, key=lambda one: one.seconds or 0.0))}."


def _timed(results: Results, one: Standing) -> str:
    """The method's name, with its milliseconds a sample where they are known."""
    cost = "" if one.seconds is None else f" ({_milliseconds(one.seconds)} ms a sample)"
    return f"{results.label(one.method)}{cost}"


def leaderboard(results: Results, beyond: Beyond) -> Table:
    """The boards as a table, a method a row."""
    metric, measure = METRICS[lead()], MEASURES[DELTA]
    columns = (
        Column("", "group", digits=0),
        Column("", metric.label, unit=f" {metric.unit}"),
        Column("", measure.label, digits=2),
        Column("", "ms a sample", significant=3),
        Column("", "fails"),
    )
    frame = []
    for board in boards(results, beyond):
        for one in board.standings:
            milliseconds = None if one.seconds is None else 1000 * one.seconds
            failed = Cell(state=one.failed) if one.failed else UNDEFINED_CELL
            cells = (Cell(one.group), one.evidence, one.faithfulness, known(milliseconds), failed)
            for column, cell in zip(columns, cells, strict=True):
                frame.append(Entry(board.task, (board.model, results.label(one.method)), column, cell))
    return Table(
        "leaderboard",
        "Leaderboard",
        f"Methods in groups: no other method of a group or of those below it is better by {metric.label} on the "
        "samples that all have (paired test, Holm over the pairs). Intervals are of 95 %; seconds are the median over "
        "the batches of this run, as if methods shared no pass.",
        ("model", "method"),
        columns,
    ).filled(frame)


def method_seconds(results: Results, rows: Iterable[Mapping[str, object]]) -> dict[tuple[str, str, str], float]:
    """Median seconds of a sample by model, task and method, from rows of the runtime schema with their place.

    A method of a shared pass takes the pass's forward, its own backward and its own aggregation.
    """
    times: dict[tuple[object, ...], list[float]] = {}
    for row in rows:
        model, task = str(row["model"]), str(row["task"])
        if row["dtype"] == results.dtypes.get((model, task), ("",))[0]:
            seconds = float(str(row["wall_s"])) / int(str(row["batch"]))
            times.setdefault((model, task, row["method"], row["stage"]), []).append(seconds)
    median = {key: float(np.median(values)) for key, values in times.items()}
    told = {}
    for model, task in results.dtypes:
        for name, method in results.methods.items():
            parts = [median.get((model, task, name, stage)) for stage in ("backward", "aggregate")]
            shared = median.get((model, task, method.passes, "forward"))
            whole = median.get((model, task, name, "method"), median.get((model, task, method.passes, "method")))
            if shared is not None and None not in parts:
                told[model, task, name] = shared + sum(part for part in parts if part is not None)
            elif shared is None and whole is not None:
                told[model, task, name] = whole
    return told


def glossary(results: Results) -> list[tuple[str, str]]:
    """(word, meaning) of the tasks, metrics and methods that are shown."""
    meanings = [(name, task.title) for name, task in results.tasks.items()]
    meanings += [(metric.label, _first_line(metric.function)) for metric in METRICS.values()]
    meanings += [(results.label(name), results.methods[name].about) for name in results.ordered_methods()]
    return [(word, meaning) for word, meaning in meanings if meaning]


def weak_points(results: Results, board: Board) -> Iterator[str]:
    """Of methods that do no better than chance without a fault: the sentences of their records."""
    base = results.baseline
    compared = results.comparisons.get((board.model, board.task, results.dtypes[board.model, board.task][0]))
    if compared is None or base not in compared.methods:
        return
    k, floor = compared.metrics.index(lead()), compared.methods.index(base)
    for at, method in enumerate(compared.methods):
        is_above = compared.mean[at, k] > compared.mean[floor, k] and compared.p[at, floor, k] < 0.05
        if results.methods[method].weak and not is_above:
            yield f"{results.label(method)}: {results.methods[method].weak}"


def _first_line(function: object) -> str:
    return (inspect.getdoc(function) or "").split("\n")[0]
