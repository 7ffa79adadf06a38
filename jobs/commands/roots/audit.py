"""The audit and the export of a prepared benchmark, read from the store."""

from __future__ import annotations

import hashlib
import heapq
import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

from evaluation.benchmark import audit as figures
from evaluation.benchmark import export as card
from evaluation.benchmark.samples import Row, meta_of
from jobs.commands import terminal
from jobs.commands.terminal import say
from jobs.config import RunConfig
from jobs.config.file import nearest
from jobs.stages.audit import audit_table, record_of, samples_in
from jobs.store import Ledger, Store
from jobs.store.records import artifact_in
from jobs.store.verify import verified
from lrp_core.records.types import UserError


def audit(
    config: RunConfig,
    store: Store,
    task: str | None = None,
    part: str | None = None,
    n: int | None = None,
    json_file: Path | None = None,
    deep: bool = False,
) -> bool:
    """Print the audit of every task, or of one; with `n`, so many of its sentences with their evidence instead.

    Returns True where all files that the root's manifests list are there with their sizes, and, where `deep`, with the
    bytes that were written; otherwise prints a line for each damaged artifact. Of a task that has parts, prints so many
    sentences of each `part`, or of one. Raises UserError for a task or part that does not exist, a task that is not
    prepared or not whole, and a part that is asked for without `n`.
    """
    if task is not None and task not in config.tasks:
        raise UserError(f"no task {task!r} in config {config.name!r}{nearest(task, config.tasks)}")
    if part is not None and (task is None or n is None):
        raise UserError("--part asks for sentences: say which --task, and how many (--n)")
    ledger = Ledger(store)
    tasks = list(config.tasks) if task is None else [task]
    if n is not None:
        for name in tasks:
            _print_samples(config, ledger, name, part, n)
    if n is None or json_file is not None:
        tables = audit_table(config, store, tasks)
    if n is None:
        for line in (*figures.table(tables), *figures.reasons(tables)):
            say(line)
    if json_file is not None:
        json_file.write_text(json.dumps(tables, indent=1, ensure_ascii=False))
    if deep:
        for line in _verified(store):
            say(line)
        ledger = Ledger(store)  # knows of what was noted
    artifacts = (artifact_in(record) for _, record in ledger.records())
    damage = [ledger.described_damage(artifact) for artifact in artifacts if artifact is not None]
    lines = [*filter(None, damage), *ledger.unreadable().values()]
    for line in lines:
        say(line)
    return not lines


def _verified(store: Store) -> Iterator[str]:
    """Lines about the artifacts whose files were read and held against their hashes, and about those that were not."""
    checked = files = 0
    unverified: Counter[str] = Counter()
    for outcome in verified(Ledger(store)):
        checked += not outcome.unverified
        files += 0 if outcome.unverified else outcome.files
        unverified[outcome.unverified] += bool(outcome.unverified)
    yield f"{files} files of {checked} artifacts were read and held against their hashes"
    yield from (f"{count} artifacts are unverified: {why}" for why, count in unverified.items() if count)


def export(config: RunConfig, store: Store, to: Path) -> list[Path]:
    """Write the generic benchmark and its card to the folder `to`; returns the files written.

    Raises UserError for an unprepared task, and when the folder cannot be written.
    """
    ledger = Ledger(store)
    records, shards, tasks = {}, {}, {}
    for name in config.tasks:
        records[name] = record_of(ledger, name)
        shards[name] = samples_in(ledger, name)
        tasks[name] = config.task(name)
    return card.export(shards, records, audit_table(config, store, list(tasks)), to, tasks)


def _print_samples(config: RunConfig, ledger: Ledger, task: str, part: str | None, n: int) -> None:
    """Print `n` random samples of each part, the same every time: they are drawn by a hash of their id."""
    record_of(ledger, task)
    key = config.task(task).parts
    drawn = defaultdict[str, list[Row]](list)
    counts: Counter[str] = Counter()

    def draw(row: Row) -> bytes:
        return hashlib.sha256(f"{config.seed}:{row['sample_id']}".encode()).digest()

    for shard in samples_in(ledger, task):
        for row in shard.to_pylist():
            member = (key and meta_of(row).get(key)) or ""
            counts[member] += 1
            drawn[member].append(row)
        for member, rows in drawn.items():
            drawn[member] = heapq.nsmallest(n, rows, key=draw)
    if part is not None and part not in counts:
        parts = list(filter(None, counts))
        advice = nearest(part, parts) if parts else ": it has none"
        raise UserError(f"task {task} has no part {part!r}{advice}")
    for member in sorted(counts) if part is None else [part]:
        if member:
            say(f"{task}, {member}: {len(drawn[member])} of {counts[member]}")
        for row in drawn[member]:
            say(figures.judged(row, bool(terminal.console.color_system)))
