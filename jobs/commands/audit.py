"""The audit and the export of a prepared benchmark, read from the store."""

from __future__ import annotations

import hashlib
import heapq
import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from rich.console import Console

from evaluation.benchmark import audit as figures
from evaluation.benchmark import export as card
from evaluation.benchmark.samples import Row, meta_of
from evaluation.schema import GENERIC, VIEW
from jobs.config import RunConfig
from jobs.config.file import nearest
from jobs.store import Artifact, Ledger, Store
from jobs.store.artifacts import samples_of, views_of
from jobs.store.ledger import artifact_in
from lrp_core.types import UserError


def audit(
    config: RunConfig,
    store: Store,
    console: Console,
    *,
    task: str | None = None,
    part: str | None = None,
    n: int | None = None,
    json_file: Path | None = None,
) -> bool:
    """Print the audit of every task, or of one; with `n`, so many of its sentences with their evidence instead.

    Returns whether everything that the root's manifests list is there, with a line for each artifact where it is not.
    Of a task that has parts, so many sentences of each `part`, or of one. Raises UserError for a task or part that does
    not exist, a task that is not prepared or not whole, and a part that is asked for without `n`.
    """
    if task is not None and task not in config.tasks:
        raise UserError(f"no task {task!r} in config {config.name!r}{nearest(task, config.tasks)}")
    if part is not None and (task is None or n is None):
        raise UserError("--part asks for sentences: say which --task, and how many (--n)")
    tasks = [task] if task is not None else list(config.tasks)
    if n is not None:
        for name in tasks:
            _print_samples(config, store, name, part, n, console)
    tables = audit_table(config, store, tasks) if n is None or json_file is not None else {}
    if n is None:
        for line in (*figures.table(tables), *figures.reasons(tables)):
            console.print(line, soft_wrap=True, markup=False)
    if json_file is not None:
        json_file.write_text(json.dumps(tables, indent=1, ensure_ascii=False))
    ledger = Ledger(store)
    artifacts = filter(None, (artifact_in(record) for _, record in ledger.records()))
    damage = [*filter(None, map(ledger.described_damage, artifacts)), *ledger.unreadable().values()]
    for text in damage:
        console.print(text, soft_wrap=True, markup=False)
    return not damage


def audit_table(config: RunConfig, store: Store, tasks: list[str]) -> dict[str, dict[str, dict[str, Any]]]:
    """{task: {tokenizer: figures}}, where rows_in = accepted + all rejects. Raises UserError for an unprepared task."""
    tables: dict[str, dict[str, dict[str, Any]]] = {}
    ledger = Ledger(store)
    for task in tasks:
        record, known = _record(ledger, task), config.task(task)
        shares = known.share if known.is_published(record["origin"]["source"]) else {}
        own, columns = samples_of(task), figures.GENERIC_COLUMNS
        samples = figures.of_samples(_shards(ledger, own, GENERIC, columns))
        parts = figures.members(_shards(ledger, own, GENERIC, columns), known.parts) if known.parts else {}
        tables[task] = {}
        for _, view in ledger.records("views"):
            if view["task"] != task or view["benchmark"] != record["key"]:
                continue
            own, columns = views_of(view["tokenizer"], task), figures.VIEW_COLUMNS
            tables[task][view["tokenizer"]] = {
                "rows_in": record["read"] - record["beyond_limit"],
                "beyond_limit": record["beyond_limit"],
                **figures.of_views(_shards(ledger, own, VIEW, columns)),
                "rejects": dict(Counter(record["rejects"]) + Counter(view["rejects"])),
                "paper_share": shares.get(view["kind"]),
                **samples,
                "parts": figures.of_parts(
                    _shards(ledger, own, VIEW, columns), parts, record["survey"].get("parts", {})
                ),
            }
    return tables


def export(config: RunConfig, store: Store, to: Path) -> list[Path]:
    """Write the generic benchmark and its card to the folder `to`; the files written.

    Raises UserError for an unprepared task, and when the folder cannot be written.
    """
    ledger = Ledger(store)
    records = {task: _record(ledger, task) for task in config.tasks}
    shards = {task: _shards(ledger, samples_of(task), GENERIC, None) for task in config.tasks}
    tasks = {task: config.task(task) for task in config.tasks}
    return card.export(shards, records, audit_table(config, store, list(tasks)), to, tasks)


def _record(ledger: Ledger, task: str) -> dict[str, Any]:
    record = ledger.latest(samples_of(task))
    if record is None:
        raise UserError(f"task {task} is not prepared in {ledger.store.root}; run `closelook prepare`")
    return record


def _shards(ledger: Ledger, own: Artifact, schema: pa.Schema, columns: list[str] | None) -> Iterator[pa.Table]:
    """The shards of samples or views. Raises StoreError where they are not as their manifest says."""
    return ledger.read_whole(own, list(ledger.whole(own)), schema, columns)


def _print_samples(config: RunConfig, store: Store, task: str, part: str | None, n: int, console: Console) -> None:
    """Print `n` random samples of each part, the same every time: they are drawn by a hash of their id."""
    ledger = Ledger(store)
    _record(ledger, task)
    name, drawn = config.task(task).parts, defaultdict[str, list[Row]](list)
    counts: Counter[str] = Counter()

    def draw(row: Row) -> bytes:
        return hashlib.sha256(f"{config.seed}:{row['sample_id']}".encode()).digest()

    for shard in _shards(ledger, samples_of(task), GENERIC, None):
        for row in shard.to_pylist():
            member = (meta_of(row).get(name) if name else None) or ""
            counts[member] += 1
            drawn[member].append(row)
        for member, rows in drawn.items():
            drawn[member] = heapq.nsmallest(n, rows, key=draw)
    if part is not None and part not in counts:
        parts = list(filter(None, counts))
        raise UserError(f"task {task} has no part {part!r}{nearest(part, parts) if parts else ': it has none'}")
    for member in sorted(counts) if part is None else [part]:
        if member:
            console.print(f"{task}, {member}: {len(drawn[member])} of {counts[member]}", highlight=False, markup=False)
        for row in drawn[member]:
            console.print(figures.judged(row, bool(console.color_system)), soft_wrap=True)
