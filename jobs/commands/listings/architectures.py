"""Architectures of transformers under rules on operations: a list that is shipped."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

from closelook.terminal import say

FILE = Path(__file__).with_name("architectures.csv")
HEADS = ("causal", "masked", "encoder-decoder")  # of language models


@dataclass(frozen=True)
class Outcome:
    """What the checks of a model class found."""

    name: str
    head: str
    reason: str = ""  # why it does not pass; empty if it passes


def outcomes() -> list[Outcome]:
    """The outcomes that are shipped."""
    with FILE.open(encoding="utf-8", newline="") as file:
        return [Outcome(**row) for row in csv.DictReader(file)]


def show() -> None:
    """Print how many architectures pass, and their names, by head."""
    known = outcomes()
    say(
        "models of transformers whose relevance follows from rules on operations (docs/models.md says why others fail):"
    )
    for head in HEADS:
        of_head = [outcome for outcome in known if outcome.head == head]
        passing = [outcome.name for outcome in of_head if not outcome.reason]
        say(f"{head}: {len(passing)} of {len(of_head)}", "bold")
        say(f"  {', '.join(passing)}")


def check() -> list[Outcome]:
    """Check every architecture, each in a process of its own, and print what is found."""
    from closelook.lrp_core.verification.architectures import architectures, check_all

    found = []
    for checked in check_all(architectures(HEADS)):
        outcome = Outcome(checked.architecture.name, checked.architecture.head, checked.outcome)
        found.append(outcome)
        say(f"{outcome.name}: {outcome.reason or 'passes'}")
    return found
