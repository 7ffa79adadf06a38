"""The table of options that a run chose, with all that it tried."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from evaluation.report.faithfulness import DELTA, DIGITS, WAYS
from evaluation.report.results import Results, label
from evaluation.report.table import UNDEFINED, Cell, Column, Row, Table
from evaluation.scoring.faithfulness import MEASURES
from evaluation.scoring.trials import Trial


@dataclass(frozen=True)
class Chosen:
    """A method's trials for one model, task and precision, by their options in words."""

    model: str
    task: str
    dtype: str
    method: str
    way: str  # how tokens went
    trials: Mapping[str, Trial]
    chosen: int  # which of the trials


def choices_table(choices: Sequence[Chosen], results: Results) -> Table:
    """A trial a row; the chosen one of each method is bold."""
    rows = [
        Row(
            one.task,
            (f"{one.model}, {one.dtype}, {WAYS[one.way]}", label(results.methods, one.method), words),
            (
                Cell(trial.delta_area, mark="best" if at == one.chosen else "") if trial.n else Cell(state=UNDEFINED),
                Cell(trial.n),
                Cell(trial.left_out),
                Cell(state="chosen" if at == one.chosen else UNDEFINED),
            ),
        )
        for one in sorted(choices, key=lambda one: list(results.tasks).index(one.task))
        for at, (words, trial) in enumerate(one.trials.items())
    ]
    return Table(
        "faithfulness_choices",
        "Options that were chosen",
        "Where the config lists several values of an option, every set of them was tried on a few samples, for each "
        "model, task and precision, and the one with the largest ΔA on the samples "
        "of which all sets have curves was chosen, the first of equal ones (AttnLRP 4.1). "
        "Everything else that is shown of these methods was computed with what was chosen.",
        ("model", "method", "options"),
        (
            Column("", MEASURES[DELTA].label, digits=DIGITS + 1),
            Column("", "samples", digits=0),
            Column("", "left out", digits=0),
            Column("", "chosen"),
        ),
        tuple(rows),
    )
