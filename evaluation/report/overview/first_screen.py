"""The first screen: which methods to use, as a sentence, a picture and a table of levels."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

from markupsafe import Markup

from closelook.evaluation.report.drawing import POINT, Line, Looks, Panel, Plot, looks
from closelook.evaluation.report.heatmaps.markup import heatmaps
from closelook.evaluation.report.leaves import Entry
from closelook.evaluation.report.overview.standings import TOP, Board, Standing
from closelook.evaluation.report.page import Figure, FirstScreen
from closelook.evaluation.report.results import Results
from closelook.evaluation.report.table import Cell
from closelook.evaluation.scoring.metrics import lead
from closelook.lrp_core.records.explained import CONTRASTIVE, NONE

NAMED = 3  # methods that the sentence names, and that the heat map shows
LONGEST = 40  # tokens of the sample of the heat map
PANELS = 2  # model-task pairs that the picture shows
_SIZES = (4.0, 10.0)  # points: the marks of the fastest and of the slowest method of a panel

PICTURE = Plot(
    "first_screen",
    "Evidence and faithfulness",
    "A point is a method, larger if it takes longer; lines are 95 % intervals, dashes random relevance.",
    ("finds the evidence (PG, %)", "faithfulness (ΔA, logits)"),
    alike=False,
    tabled=True,
)


def first_screen(results: Results, boards: Sequence[Board], sample: Entry | None) -> FirstScreen:
    """The first screen, from at least one board; `sample` is the entry whose heat map it shows."""
    best = leaders(boards, results.baselines)
    shown = Markup() if sample is None else shown_sample(sample, [label for _, label, *_ in best])
    return FirstScreen(sentence(results, boards), picture(results, boards), shown, levels(results, boards))


def leaders(boards: Sequence[Board], baselines: Sequence[str]) -> list[tuple[str, str, int, int]]:
    """(method, label, boards on which its level is TOP, boards that have it), the most successful first."""
    tops: dict[str, list[Standing]] = {}
    for board in boards:
        for standing in board.standings:
            if standing.method not in baselines:
                tops.setdefault(standing.method, []).append(standing)
    counted = []
    for method, standings in tops.items():
        reached = sum(standing.level == TOP for standing in standings)
        counted.append((method, standings[0].label, reached, len(standings)))
    return sorted(counted, key=lambda item: (-item[2], item[3]))


def sentence(results: Results, boards: Sequence[Board]) -> str:
    """What to use here and how sure that is, from the tests of all boards: pairs are counted, nothing is averaged."""
    best = [item for item in leaders(boards, results.baselines) if item[2]][:NAMED]
    if not best:
        return "No method is shown to find the evidence more often than random relevance does."
    (_, first, tops, of), *others = best
    named = [f"{first} is among the best on {tops} of {of} model-task pairs"]
    named += [f"{label} on {tops} of {of}" for _, label, tops, of in others]
    sentences = [", ".join(named) + "."]
    nothing = [f"{board.model} · {board.task}" for board in boards if not board.used]
    if nothing:
        sentences.append(f"No method beats random relevance on {', '.join(nothing)}.")
    failing = [(each.label, board) for board in boards for each in board.standings if each.failed]
    if failing:
        named = [f"{label} on {board.model} · {board.task}" for label, board in failing]
        sentences.append(f"Fails a control: {', '.join(named)}.")
    return " ".join([*sentences, _sureness(results, boards)]).strip()


def _sureness(results: Results, boards: Sequence[Board]) -> str:
    """The sentence on the differences that the samples of the boards can show; empty if that is unknown."""
    compared = [found for board in boards if (found := results.compared(board.model, board.task)) is not None]
    smallest = [points for each in compared if (points := each.smallest_by(lead())) is not None]
    if not smallest:
        return ""
    samples = _range(each.n for each in compared)
    differences = _range(map(round, smallest))
    return f"Each pair has {samples} samples, with which differences below about {differences} points often go unseen."


def _range(values: Iterable[int]) -> str:
    """The smallest and the largest of whole numbers.

    >>> _range([60, 30, 40]), _range([7])
    ('30 to 60', '7')
    """
    every = sorted(values)
    return " to ".join(dict.fromkeys((str(every[0]), str(every[-1]))))


def levels(results: Results, boards: Sequence[Board]) -> list[tuple[str, list[Standing | None]]]:
    """(label of a method, its standing on each board, None where a board lacks it), in the order of `leaders`."""
    methods = [(method, label) for method, label, *_ in leaders(boards, results.baselines)]
    methods += [(method, results.label(method)) for method in results.baselines]
    rows = []
    for method, label in methods:
        row = [next((each for each in board.standings if each.method == method), None) for board in boards]
        if any(row):
            rows.append((label, row))
    return rows


def picture(results: Results, boards: Sequence[Board]) -> list[Figure]:
    """Evidence against faithfulness on up to PANELS boards that measure both, of different models.

    Those with the most methods are drawn. Marks of slower methods are larger; dashed lines are random relevance.
    """
    drawn: dict[str, tuple[Board, list[Standing]]] = {}  # by model
    measured = [(board, _measured(board, results.baselines)) for board in boards]
    for board, standings in sorted(measured, key=lambda item: -len(item[1])):
        if len(standings) > 1:
            drawn.setdefault(board.model, (board, standings))
    shown = list(drawn.values())[:PANELS]
    look = looks({each.method for _, standings in shown for each in standings}, results.methods)
    panels = [_panel(board, standings, results.baseline, look) for board, standings in shown]
    return PICTURE.figures(panels, results.methods)


def _measured(board: Board, baselines: Sequence[str]) -> list[Standing]:
    """The methods of a board whose evidence and faithfulness are known."""
    standings = (each for each in board.standings if each.method not in baselines)
    return [each for each in standings if each.evidence.value is not None and each.faithfulness.value is not None]


def _panel(board: Board, standings: Sequence[Standing], baseline: str | None, look: Looks) -> Panel:
    """The panel of a board with these methods, and lines of what random relevance has."""
    lines = []
    logs = [math.log(each.seconds) for each in standings if each.seconds]
    for standing in standings:
        x, y = standing.evidence, standing.faithfulness
        assert x.value is not None
        assert y.value is not None
        size = _SIZES[0] if not standing.seconds else _size(math.log(standing.seconds), logs)
        bars = [(_ends(x), [y.value] * 2, {"linewidth": 0.7}), ([x.value] * 2, _ends(y), {"linewidth": 0.7})]
        marks = {"color": look[standing.method]["color"], "markersize": size, "markeredgecolor": "white"} | POINT
        lines.append(Line(standing.label, [x.value], [y.value], marks, bars=bars))
    chance = [each.evidence.value for each in board.standings if each.method == baseline]
    crossing = (chance[0], 0.0) if chance and chance[0] is not None else None
    return Panel(f"{board.model} · {board.task}", lines, {"xlim": (-4, 104)}, crossing=crossing)


def _size(log_seconds: float, logs: Sequence[float]) -> float:
    """The size of a mark in points, from the logarithm of the seconds among those of its panel."""
    least, most = min(logs), max(logs)
    share = (log_seconds - least) / (most - least) if most > least else 0.0
    return _SIZES[0] + share * (_SIZES[1] - _SIZES[0])


def _ends(cell: Cell) -> list[float]:
    """The ends of a cell's interval; twice its value without one."""
    return [cell.value if end is None else end for end in (cell.low, cell.high)]  # type: ignore[misc]


def is_telling(entry: Entry) -> bool:
    """True if a sample can stand on the first screen: a text with evidence, which the model predicts rightly."""
    explanations = {row["explanation"] for row in entry["rows"]}
    is_known = "image" not in entry and bool(entry["correct"]) and any(entry["evidence"])
    return is_known and CONTRASTIVE.name in explanations and len(entry["tokens"]) <= LONGEST


def noting(entries: Iterable[Entry], found: list[Entry]) -> Iterator[Entry]:
    """Yield `entries`; the first that `is_telling` becomes the only member of `found`."""
    for entry in entries:
        if not found and is_telling(entry):
            found.append(entry)
        yield entry


def shown_sample(entry: Entry, labels: Sequence[str]) -> Markup:
    """The heat map of a sample under NAMED of its methods, those whose labels come first in `labels`."""
    rows = {row["label"]: row for row in entry["rows"] if row["explanation"] in (CONTRASTIVE.name, NONE)}
    order = [label for label in labels if label in rows]
    asked = f"“{entry['target']}”" + (f" rather than “{entry['foil']}”" if entry["foil"] else "")
    caption = f"Which tokens made {entry['model']} say {asked}? ({entry['task']})"
    return heatmaps([{**entry, "rows": [rows[label] for label in order[:NAMED]]}], caption)
