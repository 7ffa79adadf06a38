"""Shares of tokens taken away: NormXLogit's tables 1 and 3 and its figures, with sufficiency beside AOPC always."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from evaluation.report.drawing import Line, Panel, Plot, looks
from evaluation.report.faithfulness import WAYS, Setting, note_of, summary_cell
from evaluation.report.page import Figure
from evaluation.report.papers import normxlogit
from evaluation.report.results import Results, label, rank
from evaluation.report.table import (
    BOLD,
    MISSING,
    NOISE,
    UNDEFINED,
    UNSEEN,
    Cell,
    Column,
    Entry,
    Table,
    difference_cell,
    known,
    of_group,
    smallest_told,
)
from evaluation.scoring.faithfulness import MEASURES
from evaluation.scoring.flips import SHARES
from evaluation.scoring.shares import OF_LABELS, OF_SCORES, Shares

DIGITS = 3  # as the paper prints them
PAPER = "NormXLogit"
NOT_DRAWN = (
    "No shares of tokens are taken away: set `perturb` in a config with classifiers, and run `closelook perturb`."
)
DOUBTS = (
    "The paper's accuracies (its table 3) are sums of ten values, from 0 to 90 %, over nine: too high by a ninth of "
    "the accuracy on whole inputs; ours are means from 10 to 90 %. Its accuracies of LogAt contradict its AOPC. Its "
    "gradient norm of Llama 2 on MultiNLI is .419 in its table 1 and .364 on its slides. Its text has no sufficiency: "
    "what stands beside ours is from its notebook for MultiNLI, where NormXLogit (.381) is worse than random (.362)."
)


@dataclass(frozen=True)
class Taken(Setting):
    """Shares of one model, task and perturbation."""

    shares: Shares
    lacking: Sequence[str] = ()  # methods whose curves are wanted and not drawn
    noise: Sequence[str] = ()  # methods whose relevance is nothing but rounding
    published: str | None = None  # the model in NormXLogit's tables

    @property
    def methods(self) -> list[str]:
        return [*self.shares.variants, *self.lacking, *self.noise]


def published(task: str, model: str, model_id: str) -> str | None:
    """The paper's model of that name: the one that a config's model is, or that its name begins with."""
    names = dict.fromkeys(key[1] for key in normxlogit() if key[0] == task)
    return next((name for name in names if model.startswith(name) or model_id.rpartition("/")[2] == name), None)


LEADS = Table(
    "shares_overview",
    "Faithfulness on labels and scores",
    "AOPC: the probability that is lost without 10, ..., 90 % of the top tokens, mean over shares; larger is "
    "better. Sufficiency: what is lost with those tokens alone; smaller is better. Of scores: Pearson's r with "
    "the gold scores, smaller without the top tokens and larger with them alone. "
    f"Columns named {PAPER} are the paper's own models.",
    ("method",),
    paper=PAPER,
)


def lead_table(taken: Sequence[Taken], results: Results) -> Table:
    """AOPC (of scores: Pearson r) and its sufficiency, a method a row, as NormXLogit's table 1.

    Numbers of the paper's models that are not among those of `taken` stand in columns of their own.
    """
    return LEADS.filled(_leads(taken, results))


def _leads(taken: Sequence[Taken], results: Results) -> Iterator[Entry]:
    methods = sorted({method for one in taken for method in one.methods}, key=lambda name: rank(results.methods, name))
    own, tasks = {(one.task, one.published) for one in taken}, {one.task for one in taken}
    printed = {}
    for task, model in dict.fromkeys(key[:2] for key in normxlogit()):
        lead = OF_SCORES[0] if (task, model, "random", OF_SCORES[0]) in normxlogit() else OF_LABELS[0]
        has = any((task, model, method, lead) in normxlogit() for method in methods)
        if has and task in tasks and (task, model) not in own:
            column = _column(lead, f"{PAPER}: {task} · {model}")
            printed[task, model, lead] = column
    for method in methods:
        row = ("", (label(results.methods, method),))
        for one in taken:
            for measure in one.shares.measures[:2]:
                yield Entry(*row, _column(measure, f"{one.task} · {one.setting()}"), _cell(one, method, measure))
        for (task, model, lead), column in printed.items():
            yield Entry(*row, column, known(normxlogit().get((task, model, method, lead))))


MEASURED = (*OF_LABELS, *OF_SCORES)
_LEFT_OUT = Column("", "left out", digits=0)


def _column(measure: str, group: str = "") -> Column:
    record = MEASURES[measure]
    return Column(group, record.label, digits=DIGITS)


def _over(measure: str) -> Column:
    return Column("", f"{MEASURES[measure].label} over random", signed=True, digits=DIGITS)


EVERY = Table(
    "shares",
    "Shares of the top tokens taken away, and all others",
    "Means over samples and over shares from 10 to 90 %, with 95 % intervals. Correct is a "
    f"prediction that equals the gold label. {BOLD} The last columns are differences to random "
    "relevance on the same samples (paired sign-flip test, and of r, which is of all samples at once, one that "
    f"swaps what is said under both methods; Holm over pairs; * p < 0.05, ** p < 0.01). {UNSEEN} {DOUBTS}",
    ("model", "method"),
    (*map(_column, MEASURED), _LEFT_OUT, *map(_over, MEASURED)),
    paper=PAPER,
)


def shares_table(taken: Sequence[Taken], results: Results) -> Table:
    """Every measure, a method a row, with intervals."""
    return EVERY.filled(_shares(taken, results), note_of({one.perturbation for one in taken}))


def _shares(taken: Sequence[Taken], results: Results) -> Iterator[Entry]:
    for one in taken:
        shares = one.shares
        for method in sorted(one.methods, key=lambda name: rank(results.methods, name)):
            row = (one.task, (one.setting(), label(results.methods, method)))
            summary = shares.summaries.get((method, shares.lead))
            yield Entry(*row, _LEFT_OUT, known(None if summary is None else summary.left_out))
            for measure in MEASURED:
                yield Entry(*row, _column(measure), _cell(one, method, measure))
                over = difference_cell(shares.comparison, method, results.baseline, measure)
                yield Entry(*row, _over(measure), over)
        columns = {measure: _column(measure) for measure in MEASURED}
        yield from smallest_told(one.task, (one.setting(),), columns, shares.comparison)


def _cell(one: Taken, method: str, measure: str) -> Cell:
    if method in one.noise:
        return Cell(state=NOISE)
    summary = one.shares.summaries.get((method, measure))
    if summary is None:
        return Cell(state=MISSING if method in one.lacking else UNDEFINED)
    cell = summary_cell(summary, normxlogit().get((one.task, one.published or "", method, measure)))
    return of_group(cell, one.shares.comparison, method, measure, MEASURES[measure].higher_is_better)


def share_figures(taken: Sequence[Taken], results: Results) -> list[Figure]:
    """Figures of a task and perturbation, a row a model: without the top tokens, and with those alone.

    Of labels the probability that is lost and the accuracy (NormXLogit's figures 2, 3 and 6 to 24), of scores Pearson's
    r with the gold scores.
    """
    figures = []
    for task, way in dict.fromkeys((one.task, one.perturbation) for one in taken):
        own = [one for one in taken if (one.task, one.perturbation) == (task, way) and one.shares.curves]
        look = looks({method for one in own for method, _ in one.shares.curves}, results.methods, results.baseline)
        for pair in dict.fromkeys(pair for one in own for pair in one.shares.pairs):
            name = MEASURES[pair[0]].label
            caption = " ".join(map(_better, pair)) + f" The tokens are {WAYS[way]}; 95 % intervals." + note_of([way])
            axes = ("share of top tokens, %", name)
            plot = Plot(f"shares_{task}_{way}_{pair[0]}", f"{name}, {task}", caption, axes, len(pair))
            panels = [
                _panel(one, measure, look, results) for one in own if pair in one.shares.pairs for measure in pair
            ]
            figures += plot.figures(panels, results.methods)
    return figures


def _panel(one: Taken, measure: str, look: Mapping[str, Mapping[str, object]], results: Results) -> Panel:
    lines = []
    for method in one.shares.variants:
        curve = one.shares.curves.get((method, measure))
        if curve is not None:
            name = label(results.methods, method)
            lines.append(Line(name, SHARES, curve.mean, look[method], curve.low, curve.high))
    return Panel(f"{one.model} · {MEASURES[measure].label}", lines)


def _better(measure: str) -> str:
    record = MEASURES[measure]
    about = record.about.removesuffix(", mean over shares")
    return f"{record.label}: {about}; {'higher' if record.higher_is_better else 'lower'} is better."
