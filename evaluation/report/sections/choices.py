"""Options that a run chose for its methods, with all that it tried, and the search among composites.

Of composites: ΔA by the rule of each group of layers (AttnLRP's figures 12 to 16), and the best one of each method (its
table 4).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from closelook.evaluation.report.drawing import COLOURS, POINT, Bar, Line, Panel, Plot
from closelook.evaluation.report.page import Figure
from closelook.evaluation.report.results import Methods, Results, label
from closelook.evaluation.report.sections.faithfulness import DELTA, DIGITS, LEFT_OUT, WAYS, Setting
from closelook.evaluation.report.table import UNDEFINED_CELL, Cell, Column, Entry, Table, fills, row_of
from closelook.evaluation.scoring.faithfulness.scores import MEASURES, Trial
from closelook.lrp_core.rules.composite import FIGURES, RULES, Spec


@dataclass(frozen=True)
class MethodTrials(Setting):
    """The trials of a method in one setting."""

    method: str
    trials: Mapping[str, Trial]  # by their options in words
    chosen: int  # index of the chosen trial
    left: int  # samples of the task that the choice did not use


_TRIED = (
    Column("", MEASURES[DELTA].label, digits=DIGITS + 1),
    Column("", "samples", digits=0),
    LEFT_OUT,
    Column("", "chosen"),
    Column("", "samples left to score", digits=0),
)


CHOICES = Table(
    "faithfulness_choices",
    "Options that were chosen",
    "If the config lists several values of an option, every combination was tried on a few samples, for each "
    "model, task and precision. The combination with the largest ΔA, on the samples for which all combinations "
    "have curves, was chosen; of equal ones the first (AttnLRP 4.1). Scores, deletion curves and neuron "
    "ablations of these methods are of the other samples: samples that chose options count in none of them. Head "
    "pruning and controls take all samples.",
    ("model", "method", "options"),
    _TRIED,
)


@fills(CHOICES)
def choices_table(choices: Sequence[MethodTrials], results: Results) -> Iterator[Entry]:
    """The table of all trials, with a row for each; the chosen trial of each method is bold."""
    tasks = list(results.tasks)
    for choice in sorted(choices, key=lambda choice: tasks.index(choice.task)):
        model = f"{choice.model}, {choice.dtype}, {WAYS[choice.perturbation]}"
        for at, (options, trial) in enumerate(choice.trials.items()):
            is_chosen = at == choice.chosen
            area = Cell(trial.delta_area, mark="best" if is_chosen else "") if trial.n else UNDEFINED_CELL
            marked = Cell(state="chosen") if is_chosen else UNDEFINED_CELL
            cells = (area, Cell(trial.n), Cell(trial.left_out), marked, Cell(choice.left))
            yield from row_of(choice.task, (model, results.label(choice.method), options), _TRIED, cells)


@dataclass(frozen=True)
class Search:
    """The composites under which a method was tried for one model, task and precision."""

    model: str
    task: str
    dtype: str
    method: str
    trials: Sequence[tuple[Spec, float]]  # each composite with its mean ΔA
    chosen: Spec

    def by_rule(self, group: str) -> dict[str, list[float]]:
        """The ΔA of all composites, by their rule for a group of layers."""
        deltas: dict[str, list[float]] = {}
        for spec, delta in self.trials:
            deltas.setdefault(str(spec.rule(group)), []).append(delta)
        return deltas


def search_figures(searches: Sequence[Search], methods: Methods) -> list[Figure]:
    """A figure for each group of layers with several tried rules; it has a panel for each model, task and method."""
    figures = []
    area = MEASURES[DELTA].label
    for group, number in FIGURES.items():
        shown = [search for search in searches if len(search.by_rule(group)) > 1]
        rules = list(dict.fromkeys(rule for search in shown for rule in search.by_rule(group)))
        limits = {"xticks": [], "xlim": (-0.6, len(rules) - 0.4)}
        panels = []
        for search in shown:
            lines = [_line(rule, rules.index(rule), values) for rule, values in search.by_rule(group).items()]
            panels.append(Panel(f"{search.task} · {search.model} · {label(methods, search.method)}", lines, limits))
        caption = (
            f"{area} of every composite that was tried, by its rule for layers of the group {group}. The line goes "
            "from the smallest to the largest value, thick between the quartiles; the point is the median. "
            f"AttnLRP's figure {number}."
        )
        plot = Plot(f"composites_{group}", f"Rules of {group.replace('_', ' ')} layers", caption, ("rule", area))
        figures += plot.figures(panels, methods)
    return figures


def _line(rule: str, at: int, values: Sequence[float]) -> Line:
    """A point at the median of `values` above x = `at`, with bars between the extremes and between the quartiles."""
    low, q1, median, q3, high = np.quantile(values, (0, 0.25, 0.5, 0.75, 1))
    extremes: Bar = ([at, at], [low, high], {"linewidth": 1})
    quartiles: Bar = ([at, at], [q1, q3], {"linewidth": 6, "alpha": 0.5})
    colour = {"color": COLOURS[at % len(COLOURS)]}
    return Line(rule, [at], [median], POINT | colour, bars=[extremes, quartiles])


BEST = Table(
    "composites_best",
    "The best composites",
    "The rule of each group of layers in the composite with the largest ΔA of all that were tried, in the form of "
    "AttnLRP's table 4, whose entries were not available; `composite: vit` is read off its figures of vision "
    "transformers. `epsilon` and `identity` are shown for layers that a composite does not mention: the method "
    "then applies its default rule.",
    ("model", "layers"),
)


@fills(BEST)
def best_table(searches: Sequence[Search], methods: Methods) -> Iterator[Entry]:
    """The rules of the chosen composites: a row for each group of layers, a column for each method."""
    for search in searches:
        column = Column("", label(methods, search.method))
        for group in RULES:
            labels = (f"{search.model}, {search.dtype}", group.replace("_", " "))
            yield Entry(search.task, labels, column, Cell(state=str(search.chosen.rule(group))))
