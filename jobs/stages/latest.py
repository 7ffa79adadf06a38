"""The latest run in short, ROOT/runs/LATEST.json and LATEST.md: new artifacts, changed groups of methods, failures.

It is meant for those who schedule runs and do not watch them. A run with nothing to do changes neither file.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass

from jobs.products.table import PRODUCTS
from jobs.store import Artifact, Ledger, Store

JSON, MARKDOWN = "runs/LATEST.json", "runs/LATEST.md"
Groups = Mapping[tuple[str, str], list[list[str]]]  # by (model, task): groups of methods, the best group first


@dataclass(frozen=True)
class Latest:
    """The results of a run, and its failures."""

    record: str  # the name of its record beside these files
    begun: str
    ended: str
    ending: str  # "complete", "incomplete", "stopped", or the error that ended it
    failures: Sequence[str]
    made: Sequence[Artifact]
    before: Groups
    now: Groups

    @property
    def changed(self) -> dict[tuple[str, str], tuple[list[list[str]] | None, list[list[str]] | None]]:
        """(groups before, groups now) by (model, task), where they differ; None for no groups."""
        pairs = {setting: (self.before.get(setting), self.now.get(setting)) for setting in (*self.before, *self.now)}
        return {setting: (before, now) for setting, (before, now) in pairs.items() if before != now}

    def as_json(self) -> str:
        """The content of LATEST.json."""
        groups = []
        for (model, task), (before, now) in self.changed.items():
            groups.append({"model": model, "task": task, "before": before, "now": now})
        facts = {"record": self.record, "begun": self.begun, "ended": self.ended, "ending": self.ending}
        made = [asdict(artifact) for artifact in self.made]
        return json.dumps({**facts, "failures": self.failures, "new": made, "groups": groups}, indent=1)

    def as_markdown(self) -> str:
        """The content of LATEST.md."""
        return "\n".join(self._lines()) + "\n"

    def _lines(self) -> Iterator[str]:
        """Yield the paragraphs of LATEST.md."""
        counts = (
            (len(self.made), "new artifacts"),
            (len(self.changed), "changed groups"),
            (len(self.failures), "failures"),
        )
        yield f"# {self.ending}: {', '.join(f'{count} {name}' for count, name in counts)}"
        yield f"\n{self.begun} to {self.ended}, all of it in {self.record}"
        if self.made:
            yield "\n## New\n\n| model | new |\n|---|---|"
            yield from self._made()
        if self.changed:
            yield "\n## Changed groups\n"
            yield "The best first: tests find no other method of a group, or of those behind it, better.\n"
            for (model, task), (before, now) in self.changed.items():
                yield f"* {model}, {task}: {_in_words(now)}; before: {_in_words(before)}"
        if self.failures:
            yield "\n## Failures\n"
            yield from (f"* {failure}" for failure in self.failures)

    def _made(self) -> Iterator[str]:
        """Yield a row of the table for each model, with its counts of new artifacts."""
        models: dict[str, Counter[str]] = defaultdict(Counter)
        for artifact in self.made:
            models[artifact.model or "all models"][PRODUCTS[artifact.product].title] += 1
        for model, counts in models.items():
            yield f"| {model} | {', '.join(f'{count} {title}' for title, count in counts.items())} |"


def groups_of(store: Store) -> Groups:
    """The groups of methods in the report that the root has now; empty for reports of older versions."""
    record = Ledger(store).latest(Artifact("report")) or {}
    return {(model, task): groups for model, task, groups in record.get("groups", ())}


def _in_words(groups: list[list[str]] | None) -> str:
    """Groups as text: `best, also best > second`."""
    return "none" if groups is None else " > ".join(", ".join(group) for group in groups)
