"""The table of options that a run chose for its methods, with all options that it tried."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from evaluation.report.results import Results, label
from evaluation.report.sections.faithfulness import DELTA, DIGITS, WAYS, Setting
from evaluation.report.table import UNDEFINED_CELL, Cell, Column, Entry, Table
from evaluation.scoring.faithfulness.scores import MEASURES
from evaluation.scoring.faithfulness.trials import Trial


@dataclass(frozen=True)
class MethodTrials(Setting):
    """The trials of a method in one setting."""

    method: str
    trials: Mapping[str, Trial]  # by their options in words
    chosen: int  # index of the chosen trial
    left: int  # samples of the task that the choice did not use


CHOICES = Table(
    "faithfulness_choices",
    "Options that were chosen",
    "If the config lists several values of an option, every combination was tried on a few samples, for each model, "
    "task and precision. The combination with the largest ΔA, on the samples for which all combinations have curves, "
    "was chosen; of equal ones the first (AttnLRP 4.1). All scores and curves of these methods were computed with the "
    "chosen options on the other samples: samples that chose options count in no score.",
    ("model", "method", "options"),
    (
        Column("", MEASURES[DELTA].label, digits=DIGITS + 1),
        Column("", "samples", digits=0),
        Column("", "left out", digits=0),
        Column("", "chosen"),
        Column("", "samples left to score", digits=0),
    ),
)


def choices_table(choices: Sequence[MethodTrials], results: Results) -> Table:
    """The table of all trials, with a row for each; the chosen trial of each method is bold."""
    tasks = list(results.tasks)
    frame = []
    for choice in sorted(choices, key=lambda choice: tasks.index(choice.task)):
        model = f"{choice.model}, {choice.dtype}, {WAYS[choice.perturbation]}"
        for at, (options, trial) in enumerate(choice.trials.items()):
            is_chosen = at == choice.chosen
            area = Cell(trial.delta_area, mark="best" if is_chosen else "") if trial.n else UNDEFINED_CELL
            marked = Cell(state="chosen") if is_chosen else UNDEFINED_CELL
            cells = (area, Cell(trial.n), Cell(trial.left_out), marked, Cell(choice.left))
            labels = (model, label(results.methods, choice.method), options)
            frame += [Entry(choice.task, labels, *entry) for entry in zip(CHOICES.columns, cells, strict=True)]
    return CHOICES.filled(frame)
