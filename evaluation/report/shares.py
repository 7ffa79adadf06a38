"""Tables of shares of tokens taken away, as NormXLogit's tables 1 and 3, with sufficiency beside AOPC always."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from evaluation.report.faithfulness import WAYS
from evaluation.report.results import Results, label, rank
from evaluation.report.table import (
    DONE,
    MISSING,
    NOISE,
    UNDEFINED,
    Cell,
    Column,
    Row,
    Table,
    mark,
    with_noise_told,
)
from evaluation.scoring.faithfulness import MEASURES
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
class Taken:
    """Shares of one model, task and perturbation."""

    model: str
    task: str
    perturbation: str
    shares: Shares
    lacking: Sequence[str] = ()  # methods whose curves are wanted and not drawn
    noise: Sequence[str] = ()  # methods whose relevance is nothing but rounding
    published: str | None = None  # the model in NormXLogit's tables

    @property
    def methods(self) -> list[str]:
        return [*self.shares.variants, *self.lacking, *self.noise]

    def setting(self) -> str:
        """What tells one table of a task from the others: the model, and the way in which tokens go."""
        return f"{self.model}, {WAYS[self.perturbation]}"


@cache
def normxlogit() -> Mapping[tuple[str, str, str, str], float]:
    """NormXLogit's tables 1 and 3, and its notebook's sufficiency: (task, model, method, measure) -> number."""
    with open(Path(__file__).with_name("normxlogit.csv"), encoding="utf-8", newline="") as file:
        return {tuple(row[:4]): float(row[4]) for row in list(csv.reader(file))[1:]}  # type: ignore[misc]


def published(task: str, model: str, model_id: str) -> str | None:
    """The paper's model of that name: the one that a config's model is, or that its name begins with."""
    known = dict.fromkeys(key[1] for key in normxlogit() if key[0] == task)
    return next((name for name in known if model.startswith(name) or model_id.rpartition("/")[2] == name), None)


def lead_table(taken: Sequence[Taken], results: Results) -> Table:
    """AOPC (of scores: Pearson r) and its sufficiency, a method a row, as NormXLogit's table 1.

    Numbers of the paper's models that are not among those of `taken` stand in columns of their own.
    """
    methods = sorted({method for one in taken for method in one.methods}, key=lambda name: rank(results.methods, name))
    columns, cells = [], []
    for one in taken:
        for measure in one.shares.measures[:2]:
            columns.append(Column(f"{one.task} · {one.setting()}", MEASURES[measure].label, digits=DIGITS))
            cells.append(_marked([_cell(one, method, measure) for method in methods], measure))
    own = {(one.task, one.published) for one in taken}
    tasks = {one.task for one in taken}
    for task, model in dict.fromkeys(key[:2] for key in normxlogit()):
        lead = OF_SCORES[0] if (task, model, "random", OF_SCORES[0]) in normxlogit() else OF_LABELS[0]
        printed = [normxlogit().get((task, model, method, lead)) for method in methods]
        if task in tasks and (task, model) not in own and any(value is not None for value in printed):
            columns.append(Column(f"{PAPER}: {task} · {model}", MEASURES[lead].label, digits=DIGITS))
            cells.append([Cell(state=UNDEFINED) if value is None else Cell(value) for value in printed])
    rows = [
        Row("", (label(results.methods, method),), of_method)
        for method, of_method in zip(methods, zip(*cells, strict=True), strict=True)
    ]
    return with_noise_told(
        Table(
            "shares_overview",
            "Faithfulness on labels and scores",
            "AOPC: the probability that is lost without 10, ..., 90 % of the top tokens, mean over shares; larger is "
            "better. Sufficiency: what is lost with those tokens alone; smaller is better. Of scores: Pearson's r with "
            "the gold scores, smaller without the top tokens and larger with them alone. "
            f"Columns named {PAPER} are the paper's own models.",
            ("method",),
            tuple(columns),
            tuple(rows),
            paper=PAPER,
        )
    )


def shares_table(taken: Sequence[Taken], results: Results) -> Table:
    """Every measure, a method a row, with intervals."""
    every = (*OF_LABELS, *OF_SCORES)
    rows = []
    for one in taken:
        methods = sorted(one.methods, key=lambda name: rank(results.methods, name))
        by_measure = [_marked([_cell(one, method, measure) for method in methods], measure) for measure in every]
        for method, *cells in zip(methods, *by_measure, strict=True):
            summary = one.shares.summaries.get((method, one.shares.lead))
            left_out = Cell(state=UNDEFINED) if summary is None else Cell(summary.left_out)
            more = [left_out, *(_over_baseline(one, method, measure, results) for measure in every)]
            rows.append(Row(one.task, (one.setting(), label(results.methods, method)), (*cells, *more)))
    return with_noise_told(
        Table(
            "shares",
            "Shares of the top tokens taken away, and all others",
            "Means over samples and over shares from 10 to 90 %, with 95 % bootstrap intervals; the best of a model is "
            "bold. Correct is a prediction that equals the gold label. The last columns are differences to random "
            "relevance on the same samples (paired sign-flip test, and of r, which is of all samples at once, one that "
            "swaps what is said under both methods; Holm over pairs; * p < 0.05, ** p < 0.01). " + DOUBTS,
            ("model", "method"),
            (
                *(Column("", MEASURES[measure].label, digits=DIGITS) for measure in every),
                Column("", "left out", digits=0),
                *(
                    Column("", f"{MEASURES[measure].label} over random", signed=True, digits=DIGITS)
                    for measure in every
                ),
            ),
            tuple(rows),
            paper=PAPER,
        )
    )


def _cell(one: Taken, method: str, measure: str) -> Cell:
    if method in one.noise:
        return Cell(state=NOISE)
    summary = one.shares.summaries.get((method, measure))
    if summary is None:
        return Cell(state=MISSING if method in one.lacking else UNDEFINED)
    reference = normxlogit().get((one.task, one.published or "", method, measure))
    if not summary.n or summary.value != summary.value:
        return Cell(state="not finite", reference=reference)
    return Cell(summary.value, DONE, summary.n, summary.low, summary.high, reference=reference)


def _marked(cells: Sequence[Cell], measure: str) -> list[Cell]:
    return mark(cells, DIGITS, lower=not MEASURES[measure].higher_is_better)


def _over_baseline(one: Taken, method: str, measure: str, results: Results) -> Cell:
    compared, base = one.shares.comparison, results.baseline
    at = compared.at(method, measure) if compared is not None else None
    beside = compared.at(base, measure) if compared is not None and base is not None else None
    if compared is None or at is None or beside is None or method == base:
        return Cell(state=UNDEFINED)
    pair, difference = (at[0], *beside), float(compared.mean[at] - compared.mean[beside])
    if difference != difference:
        return Cell(state="not finite")
    return Cell(
        difference,
        n=compared.n,
        low=float(compared.difference_low[pair]),
        high=float(compared.difference_high[pair]),
        p=float(compared.p[pair]),
    )
