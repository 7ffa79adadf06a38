"""`closelook sources`: the sentences of a run's answers with the sources of highest relevance, by method."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from closelook.evaluation.report.heatmaps.tokens import in_digits
from closelook.jobs.config import RunConfig
from closelook.jobs.stages.report.answers import Entry, answers_of, sentences_of
from closelook.jobs.store import Store
from closelook.lrp_core.records.types import UserError
from closelook.terminal import as_json, say, write_file


def show(config: RunConfig, store: Store, top: int, every: bool, to: Path | None) -> None:
    """Print the `top` sources of each sentence by two methods or (`every`) by all; write all as JSON to `to`, if given.

    Raises UserError if the run has no explained answers, and for a file that cannot be written.
    """
    answers = answers_of(config, store)
    if not answers.entries:
        raise UserError(f"{store.root} holds no sources of answers: set `ablations` in the config and run it again")
    for entry in answers.entries:
        untrained = " (untrained)" if entry["untrained"] else ""
        say(f"{entry['task']} · {entry['model']}{untrained} · {entry['way']} · {entry['sample_id']}", style="dim")
        shown = entry["rows"] if every else [entry["rows"][at] for at in dict.fromkeys(entry["pair"])]
        for (start, end), by_method in _by_sentence(entry, shown).items():
            say(entry["answer"][start:end], style="bold")
            for label, values in by_method.items():
                say(f"  {label}")
                for line in _top(entry, values, top):
                    say(f"    {line}")
    if to is not None:
        write_file(to, as_json(answers.entries))


def _by_sentence(entry: Entry, methods: list[dict[str, Any]]) -> dict[tuple[int, int], dict[str, list[float]]]:
    """The relevance of every source, by label of the method, by the characters (start, end) of a sentence."""
    relevance: dict[tuple[int, int], dict[str, list[float]]] = {}
    for method in methods:
        for (start, end), values in sentences_of(entry, method):
            said = entry["answer"][start:end]  # a method that explains the whole answer has white space around it
            without_space = start + len(said) - len(said.lstrip()), end - len(said) + len(said.rstrip())
            relevance.setdefault(without_space, {})[method["label"]] = values
    return relevance


def _top(entry: Entry, values: list[float], count: int) -> list[str]:
    """One line for each of the `count` sources of highest relevance: relevance, number, text, "(evidence)" if it is."""
    order = sorted(range(len(values)), key=lambda at: -values[at])[:count]
    lines = []
    for at, number in zip(order, in_digits([values[at] for at in order]), strict=True):
        start, end = entry["units"][at]
        known = " (evidence)" if entry["evidence"] and entry["evidence"][at] else ""
        lines.append(f"{number} source {at + 1}{known}: {' '.join(entry['prompt'][start:end].split())}")
    return lines
