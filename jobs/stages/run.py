"""A run: its stages in order, what it leaves incomplete, and the records of it in ROOT/runs.

ROOT/runs/TIME.json has settings, versions and errors. ROOT/runs/LATEST.json and LATEST.md list new artifacts, changed
groups of methods and failures, for those who schedule runs and do not watch them. A run with nothing to do leaves no
record.
"""

from __future__ import annotations

import json
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from closelook.jobs.cluster.executor import kept_hosts
from closelook.jobs.config import RunConfig
from closelook.jobs.plan.cells import make_plan
from closelook.jobs.plan.node import Run
from closelook.jobs.products.table import PRODUCTS
from closelook.jobs.secrets import without_secrets
from closelook.jobs.stages.compute import compute
from closelook.jobs.stages.record import STAGES, StageSummary
from closelook.jobs.store import Artifact, Ledger, Store
from closelook.jobs.store.lock import is_asked
from closelook.jobs.store.retry import one_line
from closelook.lrp_core.lazy import imported_object
from closelook.lrp_core.records.types import UserError
from closelook.versions import commit, versions

JSON, MARKDOWN = "runs/LATEST.json", "runs/LATEST.md"
Groups = Mapping[tuple[str, str], list[list[str]]]  # by (model, task): groups of methods, the best group first


def function_of(stage: str) -> Callable[[RunConfig, Store], StageSummary]:
    """The function of a stage, imported only now since stages need heavy libraries."""
    first = next(product for product in PRODUCTS.values() if product.stage == stage)
    return partial(compute, stage=stage) if first.make is None else imported_object(first.make)


def run(config: RunConfig, store: Store, stages: Iterable[str] = STAGES) -> Iterator[StageSummary]:
    """Run the stages in order, and yield the summary of each. Of several, those whose setting is missing are skipped.

    A stage with failures does not stop the next ones, which work on what is complete. `closelook stop` ends the run
    after the stage.
    """
    names = list(stages)
    with kept_hosts():
        for name in names:
            stage = STAGES[name]
            if len(names) > 1 and stage.setting is not None and getattr(config, stage.setting) is None:
                continue
            yield function_of(name)(config, store)
            if is_asked(store):
                return


def not_complete(config: RunConfig, store: Store, stages: Iterable[str]) -> list[str]:
    """A line for each product of these stages with planned artifacts that are not complete; plans anew."""
    run, names, lines = Run(config, make_plan(config, store), Ledger(store)), set(stages), []
    for product in PRODUCTS.values():
        nodes = list(product.nodes(run)) if product.stage in names else []
        lacking = [node.artifact for node in nodes if node.state(run.ledger) != "done"]
        if lacking:
            counted = f"{len(lacking)} of {len(nodes)} {product.title} are not complete"
            lines.append(f"{counted}, among them {lacking[0]}: run `closelook run --root {store.root}` again")
    return lines


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
    """The groups of methods in the report that the root has now; empty without a report."""
    record = Ledger(store).latest(Artifact("report")) or {}
    return {(model, task): groups for model, task, groups in record.get("groups", ())}


def _in_words(groups: list[list[str]] | None) -> str:
    """Groups as text: `best, also best > second`."""
    return "none" if groups is None else " > ".join(", ".join(group) for group in groups)


@contextmanager
def recorded(config: RunConfig, store: Store, stages: Sequence[str]) -> Iterator[Callable[[StageSummary], None]]:
    """Record the run inside: call the function that this yields with the summary of each stage that ends.

    A run with nothing to do, or with a config that cannot run, leaves no record. If an error or a signal ends the run,
    the record has it. If the store takes no record, as on a full disk, the run ends as it would have otherwise.
    """
    begun, done, made = time.time(), list[dict[str, Any]](), list[Artifact]()
    before = groups_of(store)

    def ended(summary: StageSummary) -> None:
        seconds = time.time() - begun - sum(stage["seconds"] for stage in done)
        stage: dict[str, Any] = {
            "stage": summary.stage,
            "computed": summary.computed,
            "up_to_date": summary.skipped,
            "seconds": round(seconds, 1),
            "failures": list(map(without_secrets, summary.failures)),
        }
        done.append(stage)
        made.extend(summary.made)

    def write(error: str | None) -> None:
        record: dict[str, Any] = {
            "stages_asked_for": list(stages),
            "stages": done,
            "error": error and without_secrets(error),
            "begun": _utc(begun),
            "ended": _utc(time.time()),
            "versions": versions(),
            "commit": commit(),
            "config": config.model_dump(mode="json"),
        }
        text = without_secrets(json.dumps(record, indent=1, ensure_ascii=False))
        name = f"{_utc(begun).replace(':', '')}-{uuid.uuid4().hex[:4]}"
        failures = [failure for stage in done for failure in stage["failures"]]
        ending = record["error"] or ("incomplete" if failures else "complete")
        with suppress(OSError, RuntimeError):  # the store may be full, or owned by another run
            store.write_bytes(f"runs/{name}.json", text.encode())
            ending = "stopped" if is_asked(store) else ending
            ends = {"begun": record["begun"], "ended": record["ended"], "ending": ending}
            latest = Latest(
                f"runs/{name}.json", **ends, failures=failures, made=made, before=before, now=groups_of(store)
            )
            store.write_bytes(JSON, without_secrets(latest.as_json()).encode())
            store.write_bytes(MARKDOWN, without_secrets(latest.as_markdown()).encode())

    try:
        yield ended
    except UserError:
        raise
    except BaseException as error:
        write(f"{type(error).__name__}: {one_line(error)}")
        raise
    if any(stage["computed"] or stage["failures"] for stage in done):
        write(None)


def _utc(seconds: float) -> str:
    """A time in seconds since 1970 as text, in UTC."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))
