"""The records of the first screen: the methods of a model on a task, in groups that tests tell apart.

A conclusion in words names the method to use, and the tests behind that choice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby, permutations

from closelook.evaluation.report.render import number
from closelook.evaluation.report.results import Results
from closelook.evaluation.report.table import Cell
from closelook.evaluation.scoring.faithfulness.scores import MEASURES
from closelook.evaluation.scoring.metrics import METRICS, lead
from closelook.evaluation.scoring.statistics import Comparison

DELTA = "delta_area"
NOT_MEASURED = "–"
#: Levels of a method on a model and task.
TOP, BELOW, CHANCE, UNDER = "top", "below", "chance", "under"
MEANING = {
    TOP: "no other method is shown to be better",
    BELOW: "another is shown to be better",
    CHANCE: "not shown to be better than random relevance",
    UNDER: "shown to be worse than random relevance",
}
Seconds = Mapping[tuple[str, str, str], float]  # of a sample, by (model, task, method)
Verdicts = Mapping[tuple[str, str, str], str]  # the control that (model, task, method) fails; "" if it passes


@dataclass(frozen=True)
class Standing:
    """A method on a model and task. Cells have no value if nothing was measured."""

    method: str
    label: str
    group: int  # from 1; no method of this group or of later groups is shown to be better
    evidence: Cell
    faithfulness: Cell
    seconds: float | None  # of a sample, as measured in this run
    failed: str | None = None  # the control that it fails on this model and task; "" if it passes; None if none was run
    level: str = TOP


@dataclass(frozen=True)
class Board:
    """The methods on a model and task, by groups, and the conclusion from their tests."""

    model: str
    task: str
    standings: Sequence[Standing]
    conclusion: str
    dropped: int = 0  # samples that some method explains and the comparison leaves out

    @property
    def methods(self) -> list[str]:
        """The names of the methods, in the order of groups."""
        return [standing.method for standing in self.standings]

    @property
    def groups(self) -> list[list[str]]:
        """The methods of each group, the best group first."""
        groups = groupby(self.standings, lambda standing: standing.group)
        return [[standing.method for standing in members] for _, members in groups]

    @property
    def used(self) -> list[Standing]:
        """The methods of the first group that are shown to find the evidence more often than random relevance."""
        return [standing for standing in self.standings if standing.level == TOP]

    @property
    def spans(self) -> dict[str, str]:
        """The range of the methods in `used`, by column: evidence, faithfulness and time.

        Ranges are NOT_MEASURED if nothing was measured, and empty if there is no such method.
        """
        metric, used = METRICS[lead()], self.used
        columns = (metric.label, MEASURES[DELTA].label, "ms a sample")
        if not used:
            return dict.fromkeys(columns, "")
        evidence = _span([standing.evidence.value for standing in used], "{:.0f}".format, metric.unit)
        faithfulness = _span([standing.faithfulness.value for standing in used], "{:.1f}".format, "")
        seconds = _span([standing.seconds for standing in used], milliseconds, "")
        return dict(zip(columns, (evidence, faithfulness, seconds), strict=True))


@dataclass(frozen=True)
class OtherNumbers:
    """The numbers of the first screen besides scores against evidence: faithfulness, seconds and verdicts."""

    #: By (model, task): comparisons of ΔA, of relevance that explains the same number as the shown scores.
    faithfulness: Mapping[tuple[str, str], Comparison] = field(default_factory=dict)
    seconds: Seconds = field(default_factory=dict)
    verdicts: Verdicts = field(default_factory=dict)


def milliseconds(seconds: float) -> str:
    """Seconds in milliseconds, with at least two digits and all digits before the decimal point.

    >>> milliseconds(0.00123), milliseconds(1.5)
    ('1.2', '1500')
    """
    return f"{1000 * seconds:.0f}" if seconds >= 0.01 else f"{1000 * seconds:.2g}"


def _span(values: Sequence[float | None], form: Callable[[float], str], unit: str) -> str:
    """The range of the known `values`, formatted by `form`.

    >>> _span([0.4, None, 2.0], "{:.1f}".format, "%"), _span([None], str, "")
    ('0.4 to 2.0 %', '–')
    """
    known = [value for value in values if value is not None]
    if not known:
        return NOT_MEASURED
    ends = dict.fromkeys((form(min(known)), form(max(known))))
    return f"{' to '.join(ends)} {unit}".strip()


def conclusion(results: Results, model: str, task: str, standings: Sequence[Standing], compared: Comparison) -> str:
    """The conclusion on a model and task, from the groups and the comparison that they come from."""
    if not compared.is_tested:
        return f"No difference is tested with {_samples_of(compared)}: too few."
    sentences = [_groups(standings), _failing(standings)]
    sentences += [_power(compared), _other_seeds(results, model, task, compared)]
    return " ".join(filter(None, sentences))


def _groups(standings: Sequence[Standing]) -> str:
    """The sentence on what tests say of the methods."""
    under = [standing.label for standing in standings if standing.level == UNDER]
    at_chance = [standing.label for standing in standings if standing.level in (CHANCE, UNDER)]
    if len(at_chance) == len(standings):
        return "No method is shown to find the evidence more often than random relevance does."
    below = sum(standing.level == BELOW for standing in standings)
    sentences = []
    if below:
        sentences.append(f"{below} of {len(standings)} are shown to find the evidence less often than another.")
    elif not at_chance:
        sentences.append("No method is shown to find the evidence more often than another.")
    if at_chance:
        sentences.append(f"Not shown to find it more often than random relevance: {', '.join(at_chance)}.")
    if under:
        sentences.append(f"Shown to find it less often than random relevance: {', '.join(under)}.")
    return " ".join(sentences)


def _failing(standings: Sequence[Standing]) -> str:
    """The sentence on the methods that fail a control on this model and task; empty if there are none."""
    failing = [standing.label for standing in standings if standing.failed]
    return f"Fails a control here: {', '.join(failing)}." if failing else ""


def _power(compared: Comparison) -> str:
    """The sentence on the smallest difference that the samples can show; empty if it is unknown."""
    smallest = compared.smallest_by(lead())
    if smallest is None:
        return ""
    below = f"differences of {METRICS[lead()].label} below {number(smallest, 1)} points often go unseen"
    return f"With {_samples_of(compared)}, {below} (power .8)."


def _samples_of(compared: Comparison) -> str:
    """The numbers of samples and of clusters, in words."""
    counted = f"{compared.n} sample{'s' * (compared.n != 1)}"
    return counted if compared.clusters is None else f"{counted} in {compared.clusters} clusters"


def _other_seeds(results: Results, model: str, task: str, compared: Comparison) -> str:
    """The sentence on how many of the differences that tests find are also found in models trained from other seeds.

    Empty if there are no such models, or no differences.
    """
    of_seeds = [results.compared(other, task) for other in results.seeds.get(model, ())]
    others = [comparison for comparison in of_seeds if comparison is not None]
    methods = [name for name in compared.methods if all(name in each.methods for each in others)]
    claims = [pair for pair in permutations(methods, 2) if _beats(compared, *pair)]
    if not others or not claims:
        return ""
    again = sum(all(_beats(each, *pair) for each in others) for pair in claims)
    names = ", ".join(map(results.label, methods))
    found = f"{again} of the {len(claims)} differences that tests find among {names}"
    return f"{found} are found again in every model trained from another seed ({len(others)})."


def _beats(compared: Comparison, better: str, worse: str) -> bool:
    """True if a test finds that the method `better` finds evidence more often than `worse`."""
    row, column = compared.methods.index(better), compared.methods.index(worse)
    return bool(compared.beats(lead(), METRICS[lead()].higher_is_better)[row, column])
