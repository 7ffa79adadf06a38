"""`closelook audit` and `closelook export`: the figures, samples and data set of a prepared benchmark."""

from __future__ import annotations

import hashlib
import heapq
import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

from evaluation.benchmark import audit as figures
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
    """Print the audit of every task, or of one; with `n`, print `n` samples with their evidence instead.

    Samples are drawn at random from each part of a task that has parts, or from one `part`. Then prints a line for each
    damaged artifact of the root: one with a file that is gone or has another size or, with `deep`, other bytes. Returns
    True if none is damaged. Raises UserError for an unknown task or part, a task that is not prepared or is damaged,
    and a `part` without `n`.
    """
    if task is not None and task not in config.tasks:
        raise UserError(f"no task {task!r} in config {config.name!r}{nearest(task, config.tasks)}")
    if part is not None and (task is None or n is None):
        raise UserError("--part chooses the samples to print: add --task NAME, and how many (--n NUMBER)")
    ledger = Ledger(store)
    tasks = list(config.tasks) if task is None else [task]
    if deep:  # before anything reads files that may be damaged
        for line in _verified(store):
            say(line)
        ledger = Ledger(store)  # a new one reads the notes of damage that verification left
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
    artifacts = (artifact_in(record) for _, record in ledger.records())
    damage = [ledger.described_damage(artifact) for artifact in artifacts if artifact is not None]
    lines = [*filter(None, damage), *ledger.unreadable().values()]
    for line in lines:
        say(line)
    return not lines


def _verified(store: Store) -> Iterator[str]:
    """Read all files of the root and compare them with their hashes; lines that count them."""
    checked = files = 0
    unverified: Counter[str] = Counter()
    for outcome in verified(Ledger(store)):
        checked += not outcome.unverified
        files += 0 if outcome.unverified else outcome.files
        unverified[outcome.unverified] += bool(outcome.unverified)
    yield f"{files} files of {checked} artifacts were read and compared with their hashes"
    yield from (f"{count} artifacts are unverified: {why}" for why, count in unverified.items() if count)


def export(config: RunConfig, store: Store, to: Path) -> list[Path]:
    """Write the samples of all tasks, and a dataset card, to the folder `to`. Returns the paths of the files.

    Raises UserError if a task is not prepared or the folder cannot be written to.
    """
    ledger = Ledger(store)
    records, shards, tasks = {}, {}, {}
    for name in config.tasks:
        records[name] = record_of(ledger, name)
        shards[name] = samples_in(ledger, name)
        tasks[name] = config.task(name)
    return figures.export(shards, records, audit_table(config, store, list(tasks)), to, tasks)


def _print_samples(config: RunConfig, ledger: Ledger, task: str, part: str | None, n: int) -> None:
    """Print `n` random samples of each part of the task, or of `part`. They are drawn by a hash of their ids.

    So the same samples are drawn every time.
    """
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
        advice = nearest(part, parts) if parts else ": it has no parts, leave --part out"
        raise UserError(f"task {task} has no part {part!r}{advice}")
    for member in sorted(counts) if part is None else [part]:
        if member:
            say(f"{task}, {member}: {len(drawn[member])} of {counts[member]}")
        for row in drawn[member]:
            say(figures.marked(row, bool(terminal.console.color_system)))
