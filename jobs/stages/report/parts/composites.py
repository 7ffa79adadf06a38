"""The search among composites: how much each rule is worth, and which rules were chosen."""

from __future__ import annotations

from collections.abc import Iterator

from evaluation.report.page import Part
from evaluation.report.results import Methods
from evaluation.report.sections.choices import Search, best_table, search_figures
from jobs.config.composites import KEY
from jobs.plan.node import Choice
from jobs.stages.report.reported import Reported
from lrp_core.rules.composite import Spec


def composites_part(report: Reported) -> Part:
    """The trials of every method whose composite the config left open."""
    methods = report.results.methods
    choices = (choice for model in report.run.plan.models for choice in model.choices)
    searches = [search for choice in choices for search in _searched(choice, methods)]
    how = "No composite is left open: give `attnlrp` a list or a grid as its `composite`, and run `closelook select`."
    tables = [best_table(searches, methods)] if searches else []
    return Part("Rules by groups of layers", how, search_figures(searches, methods), tables, page="faithfulness.html")


def _searched(choice: Choice, methods: Methods) -> Iterator[Search]:
    """Yield the search among the composites of a choice, if it is made and has any."""
    if choice.record is None:
        return
    at, trial_records = choice.artifact, choice.record["trials"]
    for option in methods[at.method].options:
        if option.named_in == KEY and option.name in choice.options[0]:
            specs = [Spec.of(options[option.name]) for options in choice.options]
            trials = [
                (spec, trial["delta_area"]) for spec, trial in zip(specs, trial_records, strict=True) if trial["n"]
            ]
            yield Search(at.model, at.task, at.dtype, at.method, trials, specs[choice.record["chosen"]])
