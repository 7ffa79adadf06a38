"""From which sources an answer comes: how every method is judged, as tables, and its error against its cost."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np

from closelook.evaluation.ablations.means import AGAINST, EVIDENCE, MEASURES, Judgement, Measure, Variant, key_of
from closelook.evaluation.report.drawing import Line, Looks, Panel, Plot, looks
from closelook.evaluation.report.page import Figure
from closelook.evaluation.report.results import Methods, label, rank
from closelook.evaluation.report.table import (
    BOLD,
    UNSEEN,
    Column,
    Entry,
    Table,
    known,
    marked_if_best,
    mean_cell,
    smallest_differences,
)
from closelook.evaluation.scoring.faithfulness.scores import Summary
from closelook.lrp_core.records.explained import TARGET

PAGE = "sources.html"
EXPLAINED = {"target": " of logits", "log_prob": " of log p", "none": ""}
_DIGITS = {EVIDENCE: 0}
_COST = (Column("cost", "forwards", significant=3), Column("cost", "ms", significant=3))

SOURCES = Table(
    "sources",
    "From which sources does the answer come?",
    "Prompts are run again without some of their sources, and every method is judged by the same prompts. LDS: "
    "Spearman's correlation, over these prompts, of the relevance that is kept with the log-probability of the answer "
    "(log p). Infidelity: the share of its changes that the relevance that is gone leaves unexplained, after scaling. "
    "Drop k: log p that goes with the k most relevant sources; by construction leave-one-out names the source whose "
    "absence costs most log-odds. Evidence: pointing game, mean reciprocal rank and average precision of the known "
    "sources, with sources in place of tokens. Forwards are prompts that are run, whole or ablated; a backward is "
    "another. Milliseconds are those of this run. Random relevance has the numbers that are expected of it. Means over "
    f"samples with 95 % intervals. {BOLD} {UNSEEN}",
    ("model", "method"),
)
FURTHER = Table(
    "sources_further",
    "The same against logits, and drops of log-odds",
    "The table above with the sum of the answer's logits in place of its log-probability, and drops of its log-odds.",
    ("model", "method"),
)
ERRORS = Plot(
    "sources_error",
    "Error against cost",
    "1 − LDS against log p: means over the samples that all methods have, with 95 % intervals, against forwards a "
    "sample (logarithmic). Methods that explain either logits or log p explain log p. Lines join smaller budgets of "
    "ablated prompts. Screened: the 1, 2, ... sources of the highest relevance are ablated one by one; their drops "
    "replace their relevance, and other sources count as 0. Lower and further left is better.",
    ("forwards of a sample", "1 − LDS"),
)


@dataclass(frozen=True)
class Judged:
    """A judgement of methods, with the cost of each variant's relevance of a sample."""

    judgement: Judgement
    forwards: Mapping[Variant, float]  # forward passes; a backward pass counts as one
    seconds: Mapping[Variant, float]  # of variants that were timed
    untrained: bool = False  # True if the model's weights are random

    @property
    def setting(self) -> str:
        """The setting within a task, in words: the model and the way to ablate."""
        untrained = " (untrained)" if self.untrained else ""
        return f"{self.judgement.model}{untrained}, {self.judgement.way}"


def sources_tables(judged: Sequence[Judged], methods: Methods) -> list[Table]:
    """The table SOURCES of every method, and the table FURTHER of its other measures."""
    groups = ((SOURCES, (AGAINST["l"], EVIDENCE), _COST), (FURTHER, (AGAINST["f"], AGAINST["y"]), ()))
    tables = []
    for table, shown, cost in groups:
        columns = {name: _column(measure) for name, measure in MEASURES.items() if measure.group in shown}
        entries = (_entries(judged_setting, methods, columns, cost) for judged_setting in judged)
        tables.append(table.filled([*chain.from_iterable(entries), _left_out(judged)]))
    return tables


def _column(measure: Measure) -> Column:
    """The column of a measure."""
    return Column(measure.group, measure.label, digits=_DIGITS.get(measure.group, 2), unit=measure.unit)


def _entries(
    judged: Judged, methods: Methods, columns: Mapping[str, Column], cost: Sequence[Column]
) -> Iterator[Entry]:
    """Yield the cells of a setting: a row for each variant, then the smallest detectable differences.

    `columns` are those of measures, by the measure's name; `cost` is _COST, or empty for a table without cost.
    """
    judgement = judged.judgement
    for variant in sorted(
        judgement.variants, key=lambda variant: (*rank(methods, variant.method), variant.explanation)
    ):
        labels = (judged.setting, named(methods, variant))
        for name, column in columns.items():
            measure = MEASURES[name]
            cell = mean_cell(_scaled(judgement.summaries[variant, name], measure.scale))
            compared = judgement.comparisons.get(name)
            cell = marked_if_best(cell, compared, key_of(variant), name, measure.higher_is_better)
            yield Entry(judgement.task, labels, column, cell)
        seconds = judged.seconds.get(variant)
        numbers = (judged.forwards[variant], None if seconds is None else 1000 * seconds)
        for column, value in zip(cost, numbers, strict=False):
            yield Entry(judgement.task, labels, column, known(value))
    for name, column in columns.items():
        yield from smallest_differences(
            judgement.task, (judged.setting,), {name: column}, judgement.comparisons.get(name)
        )


def named(methods: Methods, variant: Variant) -> str:
    """The label of a method with its explanation, as "AttnLRP of logits"."""
    return label(methods, variant.method) + EXPLAINED[variant.explanation]


def _scaled(summary: Summary, scale: float) -> Summary:
    """`summary` with its mean and interval multiplied by `scale`."""
    return replace(summary, value=scale * summary.value, low=scale * summary.low, high=scale * summary.high)


def _left_out(judged: Sequence[Judged]) -> str:
    """The sentence of a caption on samples without LDS; empty if all have it."""
    parts = []
    for judged_setting in judged:
        lacking = judged_setting.judgement.left_out("lds_l")
        if lacking:
            judgement = judged_setting.judgement
            parts.append(f"{lacking} of {judgement.samples} of {judged_setting.setting} on {judgement.task}")
    if not parts:
        return ""
    lists = ", ".join(parts)
    return f" Without LDS, for all methods, since sources are fewer than 4 or the answer never changes: {lists}."


def error_figures(judged: Sequence[Judged], methods: Methods, baseline: str | None) -> list[Figure]:
    """The figure of error against forward passes: a panel for each model, task and way."""
    panels = []
    for judged_setting in judged:
        look = looks({variant.method for variant in judged_setting.judgement.alike}, methods, baseline)
        lines = [_line(judged_setting, group, methods, look) for group in _groups(judged_setting.judgement) if group]
        if lines:
            title = f"{judged_setting.judgement.task} · {judged_setting.setting}"
            highest = max(value for line in lines for value in line.y)
            panels.append(Panel(title, lines, {"xscale": "log", "ylim": (0, max(1.1, 1.1 * highest))}))
    return ERRORS.figures(panels, methods)


def _groups(judgement: Judgement) -> Iterator[list[Variant]]:
    """The variants of each line of the figure: a method with its smaller budgets, then the same screened by growing k.

    Of methods that explain either logits or log p, only the explanation of log p is shown.
    """
    for variant in judgement.variants:
        if variant.explanation != TARGET.name:
            alike = [other for other in judgement.alike if other[:2] == variant[:2]]
            yield sorted((other for other in alike if not other.screened), key=judgement.prompts.__getitem__)
            yield sorted((other for other in alike if other.screened), key=lambda other: other.screened)


def _line(judged_setting: Judged, group: Sequence[Variant], methods: Methods, look: Looks) -> Line:
    """The line of a group of variants of a method: 1 - LDS against forward passes, over the same samples."""
    summaries = [judged_setting.judgement.alike[variant] for variant in group]
    x = [judged_setting.forwards[variant] for variant in group]
    y = [1 - summary.value for summary in summaries]
    ends = [1 - summary.high for summary in summaries], [1 - summary.low for summary in summaries]
    style = look[group[0].method] | {"marker": "o", "markersize": 3.5}
    name = label(methods, group[0].method)
    if group[0].screened:
        style |= {"linestyle": ":", "marker": "."}
        name += ", screened"
    if not np.isfinite(ends).all():
        return Line(name, x, y, style)
    low, high = ends
    bars = []
    if len(x) == 1:
        bars.append(([x[0], x[0]], [low[0], high[0]], {"linewidth": 1.0}))
    return Line(name, x, y, style, low, high, bars)
