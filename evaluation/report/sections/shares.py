"""Faithfulness by removed shares of tokens: NormXLogit's tables 1 and 3 and its figures, always with sufficiency."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from closelook.evaluation.report.drawing import Curve, Plot, curve_panels
from closelook.evaluation.report.page import Figure
from closelook.evaluation.report.results import Results, normxlogit, ordered
from closelook.evaluation.report.sections.faithfulness import LEFT_OUT, WAYS, MethodSet, note_of
from closelook.evaluation.report.table import (
    BOLD,
    UNSEEN,
    Cell,
    Column,
    Entry,
    Table,
    difference_cell,
    fills,
    known,
    smallest_differences,
)
from closelook.evaluation.scoring.faithfulness.flips import SHARES
from closelook.evaluation.scoring.faithfulness.scores import MEASURES
from closelook.evaluation.scoring.faithfulness.shares import OF_LABELS, OF_SCORES, Shares

DIGITS = 3  # decimals, as the paper prints them
PAPER = "NormXLogit"
DOUBTS = (
    "The paper's accuracies (its table 3) are sums of ten values, from 0 to 90 %, divided by nine: they are too high "
    "by a ninth of the accuracy on whole inputs; ours are means from 10 to 90 %. Its accuracies of LogAt contradict "
    "its AOPC. Its gradient norm of Llama 2 on MultiNLI is .419 in its table 1 and .364 on its slides. Its text has no "
    "sufficiency; the paper's numbers for it are from its notebook for MultiNLI, where NormXLogit (.381) is worse than "
    "random (.362)."
)


@dataclass(frozen=True)
class ShareSet(MethodSet):
    """The effects of removed shares of tokens for all methods in one setting."""

    shares: Shares

    @property
    def numbers(self) -> Shares:
        """The effects."""
        return self.shares


def published(task: str, model: str, model_id: str) -> str | None:
    """The paper's name of a config's model: its id's last part, or the beginning of its name; None if not in the paper.

    `model` is the name in the config, `model_id` its hub id or path.
    """
    names = dict.fromkeys(key[1] for key in normxlogit() if key[0] == task)
    return next((name for name in names if model.startswith(name) or model_id.rpartition("/")[2] == name), None)


LEADS = Table(
    "shares_overview",
    "Faithfulness on labels and scores",
    "AOPC: the probability that is lost without 10, ..., 90 % of the top tokens, a mean over shares; larger is "
    "better. Sufficiency: the probability that is lost with these tokens alone; smaller is better. For scores: "
    "Pearson's r with the gold scores, smaller without the top tokens and larger with the top tokens alone. "
    f"Columns named {PAPER} hold the paper's numbers for its own models.",
    ("method",),
    paper=PAPER,
)


@fills(LEADS)
def lead_table(share_sets: Sequence[ShareSet], results: Results) -> Iterator[Entry]:
    """AOPC (for scores: Pearson's r) and its sufficiency, a row for each method, as NormXLogit's table 1.

    The paper's numbers of models that are not among those of `share_sets` have columns of their own.
    """
    methods = ordered(results.methods, {method for share_set in share_sets for method in share_set.methods})
    computed = {(share_set.task, share_set.published) for share_set in share_sets}
    tasks = {share_set.task for share_set in share_sets}
    printed = {}
    for task, model in dict.fromkeys(key[:2] for key in normxlogit()):
        lead = OF_SCORES[0] if (task, model, "random", OF_SCORES[0]) in normxlogit() else OF_LABELS[0]
        has_numbers = any((task, model, method, lead) in normxlogit() for method in methods)
        if has_numbers and task in tasks and (task, model) not in computed:
            printed[task, model, lead] = _column(lead, f"{PAPER}: {task} · {model}")
    for method in methods:
        row = ("", (results.label(method),))
        for share_set in share_sets:
            group = f"{share_set.task} · {share_set.setting()}"
            for measure in share_set.shares.measures[:2]:
                yield Entry(*row, _column(measure, group), _cell(share_set, method, measure))
        for (task, model, lead), column in printed.items():
            yield Entry(*row, column, known(normxlogit().get((task, model, method, lead))))


MEASURED = (*OF_LABELS, *OF_SCORES)


def _column(measure: str, group: str = "") -> Column:
    """The column of a measure."""
    return Column(group, MEASURES[measure].label, digits=DIGITS)


def _over(measure: str) -> Column:
    """The column of a measure's difference from random relevance."""
    return Column("", f"{MEASURES[measure].label} over random", signed=True, digits=DIGITS)


EVERY = Table(
    "shares",
    "Shares of the top tokens removed, and all other tokens removed",
    "Means over samples and over shares from 10 to 90 %, with 95 % intervals. A prediction is correct if it equals "
    "the gold label or, for a text without one, the prediction for the whole text. "
    f"{BOLD} The last columns are differences from random relevance on the same samples. Tests are paired "
    "sign-flip tests, p values are adjusted for all pairs (* p < 0.05, ** p < 0.01); r is computed over all samples "
    f"at once and not tested. {UNSEEN} {DOUBTS}",
    ("model", "method"),
    (*map(_column, MEASURED), LEFT_OUT, *map(_over, OF_LABELS)),
    paper=PAPER,
)


@fills(EVERY)
def shares_table(share_sets: Sequence[ShareSet], results: Results) -> Iterator[Entry | str]:
    """The table of every measure with intervals: a row for each method of a setting."""
    yield note_of({share_set.perturbation for share_set in share_sets})
    columns = {measure: _column(measure) for measure in MEASURED}
    for share_set in share_sets:
        shares = share_set.shares
        for method in ordered(results.methods, share_set.methods):
            row = share_set.row(results.label(method))
            summary = shares.summaries.get((method, shares.lead))
            yield Entry(*row, LEFT_OUT, known(None if summary is None else summary.left_out))
            for measure, column in columns.items():
                yield Entry(*row, column, _cell(share_set, method, measure))
            for measure in OF_LABELS:
                over = difference_cell(shares.comparison, method, results.baseline, measure)
                yield Entry(*row, _over(measure), over)
        yield from smallest_differences(share_set.task, (share_set.setting(),), columns, shares.comparison)


def _cell(share_set: ShareSet, method: str, measure: str) -> Cell:
    """The mean of a measure of a method, beside the paper's number for the same model."""
    reference = normxlogit().get((share_set.task, share_set.published or "", method, measure))
    return share_set.cell(method, measure, reference)


def share_figures(share_sets: Sequence[ShareSet], results: Results) -> list[Figure]:
    """Figures of measures without the top tokens, and with the top tokens alone, for each task and perturbation.

    A figure has a row of panels for each model.

    Tasks with labels show the lost probability and the accuracy (NormXLogit's figures 2, 3 and 6 to 24), tasks with
    scores Pearson's r with the gold scores.
    """
    by_task: dict[tuple[str, str], list[ShareSet]] = {}
    for share_set in share_sets:
        of_task = by_task.setdefault((share_set.task, share_set.perturbation), [])
        if share_set.shares.curves:
            of_task.append(share_set)
    figures = []
    for (task, way), of_task in by_task.items():
        for pair in dict.fromkeys(pair for share_set in of_task for pair in share_set.shares.pairs):
            name = MEASURES[pair[0]].label
            caption = " ".join(map(_better, pair)) + f" The tokens are {WAYS[way]}; 95 % intervals." + note_of([way])
            axes = ("share of top tokens, %", name)
            plot = Plot(f"shares_{task}_{way}_{pair[0]}", f"{name}, {task}", caption, axes, len(pair))
            drawn = []
            for share_set, measure in product(of_task, pair):
                title = f"{share_set.model} · {MEASURES[measure].label}"
                for (method, measured), mean in share_set.shares.curves.items():
                    if measured == measure and pair in share_set.shares.pairs:
                        drawn.append(Curve(title, method, SHARES, mean.mean, mean.low, mean.high))
            figures += plot.figures(curve_panels(drawn, results.methods, results.baseline), results.methods)
    return figures


def _better(measure: str) -> str:
    """The sentence on what a measure is, and whether higher or lower is better."""
    record = MEASURES[measure]
    about = record.about.removesuffix(", mean over shares")
    return f"{record.label}: {about}; {'higher' if record.higher_is_better else 'lower'} is better."
