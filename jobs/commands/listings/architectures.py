"""Architectures of transformers under rules on operations: a list that is shipped, and docs/models.md."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from closelook.jobs.commands.listings.documents import DOCS, markdown, rewrite
from closelook.terminal import say

FILE = Path(__file__).with_name("architectures.csv")
PAGE = DOCS / "models.md"
START, END = "<!-- architectures: written by closelook models --all -->", "<!-- end of architectures -->"
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


def page_table() -> str:
    """The tables of docs/models.md: counts by head, and why each architecture that does not pass fails."""
    known = outcomes()
    counts = []
    for head in HEADS:
        passing = [not outcome.reason for outcome in known if outcome.head == head]
        counts.append((head, str(sum(passing)), str(len(passing))))
    rows = [(f"`{each.name}`", each.head, each.reason) for each in known if each.reason]
    summary = markdown(("head", "pass", "of"), counts)
    return f"\n{summary}\n{markdown(('model', 'head', 'outcome'), rows)}\n"


def write(found: Iterable[Outcome]) -> None:
    """Write outcomes to the list that is shipped and to the page."""
    with FILE.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, [column.name for column in fields(Outcome)], lineterminator="\n")
        writer.writeheader()
        writer.writerows(asdict(outcome) for outcome in found)
    rewrite(PAGE, page_table(), START, END)


def check() -> None:
    """Check every architecture, each in a process of its own; in a clone of the project, write what is found."""
    from closelook.lrp_core.verification.architectures import architectures, check_all

    found = []
    for checked in check_all(architectures(HEADS)):
        outcome = Outcome(checked.architecture.name, checked.architecture.head, checked.outcome)
        found.append(outcome)
        say(f"{outcome.name}: {outcome.reason or 'passes'}")
    if PAGE.exists():
        write(found)
