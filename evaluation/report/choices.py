"""The table of options that a run chose, with all that it tried."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from evaluation.report.faithfulness import DELTA, DIGITS, WAYS, Setting
from evaluation.report.results import Results, label
from evaluation.report.table import UNDEFINED_CELL, Cell, Column, Entry, Table
from evaluation.scoring.faithfulness import MEASURES
from evaluation.scoring.trials import Trial


@dataclass(frozen=True)
class Chosen(Setting):
    """A method's trials for one model, task, precision and perturbation, by their options in words."""

    method: str
    trials: Mapping[str, Trial]
    chosen: int  # which of the trials
    left: int  # samples of the task that chose nothing


CHOICES = Table(
    "faithfulness_choices",
    "Options that were chosen",
    "Where the config lists several values of an option, every set of them was tried on a few samples, for each "
    "model, task and precision, and the one with the largest ΔA on the samples "
    "of which all sets have curves was chosen, the first of equal ones (AttnLRP 4.1). "
    "All scores and curves of these methods were computed with what was chosen, on the samples that are left: those by "
    "which options were chosen count in none of them.",
    ("model", "method", "options"),
    (
        Column("", MEASURES[DELTA].label, digits=DIGITS + 1),
        Column("", "samples", digits=0),
        Column("", "left out", digits=0),
        Column("", "chosen"),
        Column("", "samples left to score", digits=0),
    ),
)


def choices_table(choices: Sequence[Chosen], results: Results) -> Table:
    """A trial a row; the chosen one of each method is bold."""
    frame = []
    for one in sorted(choices, key=lambda one: list(results.tasks).index(one.task)):
        model = f"{one.model}, {one.dtype}, {WAYS[one.perturbation]}"
        for at, (options, trial) in enumerate(one.trials.items()):
            chosen = at == one.chosen
            area = Cell(trial.delta_area, mark="best" if chosen else "") if trial.n else UNDEFINED_CELL
            marked = Cell(state="chosen") if chosen else UNDEFINED_CELL
            cells = (area, Cell(trial.n), Cell(trial.left_out), marked, Cell(one.left))
            labels = (model, label(results.methods, one.method), options)
            frame += [Entry(one.task, labels, *entry) for entry in zip(CHOICES.columns, cells, strict=True)]
    return CHOICES.filled(frame)
