"""The stage `prepare`: data become generic samples with evidence, and tokenised views for every tokenizer of the run.

The driver surveys each data source once (its rows, drawn rows, broken rows) and finds which artifacts are missing. Ray
Data then streams parts of the sources to workers, which annotate, tokenise and commit them. A task is done when its
rows add up: rows read = accepted + rejected + beyond the limit, and accepted = views + rejects of views.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, replace
from functools import partial
from itertools import chain
from typing import Any

import pyarrow as pa
from rich.console import Console
from rich.progress import track

from closelook.evaluation.benchmark.audit import rejected, table
from closelook.evaluation.benchmark.sources.base import Source
from closelook.evaluation.schema import REJECT
from closelook.evaluation.tasks import SOURCES
from closelook.jobs.cluster.pools import connect
from closelook.jobs.cluster.recorder import LINE_EVERY_S
from closelook.jobs.config import RunConfig
from closelook.jobs.stages.audit import audit_table
from closelook.jobs.stages.prepare.parts import (
    PartWorker,
    Reader,
    Tally,
    TaskWork,
    parts_of,
    read_parts,
    shards_of,
)
from closelook.jobs.stages.prepare.wanted import VERSION, listed, origin_of, readers_of, work_of
from closelook.jobs.stages.record import StageSummary
from closelook.jobs.store import Artifact, Ledger, Store, key_in, samples_of, views_of
from closelook.versions import versions

DRIVER_ROWS = 3000  # for fewer rows, starting workers takes longer than the work
MOST_TOLD = 5  # so many rows that are left out of users' own samples are printed one by one
READER_BLOCK_BYTES = 1 << 16  # so small that the reader passes on each part at once


def prepare(config: RunConfig, store: Store) -> StageSummary:
    """Make the samples and views that are missing.

    Raises UserError, before anything is written, for a source that cannot be read, whose checksum changed or whose rows
    are all broken, for an annotator that is not installed, and for a tokenizer that does not fit its model.
    """
    readers, out_of_reach = readers_of(config)
    lines = [f"left out: {line}" for line in config.left_out] + out_of_reach
    ledger = Ledger(store)
    look = partial(work_of, config, ledger, readers=readers, all_reached=not out_of_reach)
    plans = {task: look(task=task) for task in config.tasks}
    work = {task: plan for task, plan in plans.items() if plan.missing}
    todo = [artifact for plan in work.values() for artifact in plan.missing]
    for artifact in todo:  # samples of other sources, annotators or tokenizers are not read in their place
        ledger.forget(artifact)
    tallies = _run(config, store, work) if work else {}
    failures: list[str] = []
    for task, plan in work.items():
        failures += _close(config, ledger, plan, tallies[task])
    made = tuple(filter(ledger.is_done, todo))
    for task in config.tasks:
        lines += _accounts(ledger, task, readers)
        source = SOURCES[config.tasks[task].source]
        lines += _left_out(ledger, task) if isinstance(source, Source) and source.is_users else []
    if made and not failures:
        lines += table(audit_table(config, store, list(config.tasks)))
    total = len(config.tasks) + sum(len(reader.tasks) for reader in readers)
    return StageSummary("prepare", len(made), total - len(todo), tuple(failures), tuple(lines), made)


def _run(config: RunConfig, store: Store, work: dict[str, TaskWork]) -> dict[str, Tally]:
    """Commit every part of every task. Returns the reports of each task, added up."""
    if sum(plan.survey.drawn for plan in work.values()) <= DRIVER_ROWS:
        parts = chain.from_iterable(map(parts_of, work.values()))
        reports: Iterable[Tally] = map(PartWorker(config, store, work).report_on, parts)
    else:
        reports = _stream(config, store, work)
    tallies = {task: Tally(task) for task in work}
    for report in _shown(reports, sum(plan.parts for plan in work.values())):
        tallies[report.task].add(report)
    return tallies


def _stream(config: RunConfig, store: Store, work: dict[str, TaskWork]) -> Iterator[Tally]:
    """Yield the reports of all parts, made by a Ray Data pipeline."""
    connect(config)
    import ray.data

    parts = sum(plan.parts for plan in work.values())
    workers = max(1, min(int(ray.cluster_resources().get("CPU", 1)), parts // 2))
    on_driver = {"ray.io/node-id": ray.get_runtime_context().get_node_id()}
    one_by_one: dict[str, Any] = {"batch_size": 1, "batch_format": "pyarrow"}
    tasks = ray.data.from_arrow([pa.table({"task": [task]}) for task in work])
    read = tasks.map_batches(partial(read_parts, work=work), num_cpus=0, label_selector=on_driver, **one_by_one)
    dataset = read.map_batches(
        PartWorker,
        fn_constructor_args=[config, store, work],
        compute=ray.data.ActorPoolStrategy(size=workers),
        num_cpus=1,
        **one_by_one,
    )
    dataset.set_name("prepare")
    dataset.context.enable_progress_bars = False
    dataset.context.target_max_block_size = READER_BLOCK_BYTES
    dataset.context.execution_no_progress_timeout_s = config.ray.no_progress_timeout_s
    for row in dataset.iter_rows():
        yield pickle.loads(row["report"])


def _shown(reports: Iterable[Tally], parts: int) -> Iterator[Tally]:
    """Yield `reports` as they come, and show the progress: a bar in a terminal, else a line a minute."""
    console = Console(stderr=True)
    if console.is_terminal:
        yield from track(reports, "prepare", parts, console=console, transient=True)
        return
    last = time.monotonic()
    for done, report in enumerate(reports, start=1):
        if time.monotonic() - last >= LINE_EVERY_S:
            last = time.monotonic()
            console.print(f"prepare: {done}/{parts} parts", highlight=False)
        yield report


def _close(config: RunConfig, ledger: Ledger, work: TaskWork, tally: Tally) -> list[str]:
    """Write the manifests of a task whose rows add up. Returns a line for each artifact whose rows do not."""
    if tally.error:
        return [f"{work.task}: {tally.error}"]
    survey, accepted, rows_in = work.survey, tally.rows["generic"], work.survey.drawn + work.survey.rejected
    if tally.out("generic") != rows_in:
        return [f"{work.task}: {rows_in} rows in, {tally.out('generic')} out"]
    if not work.has_generic:
        described = asdict(survey)
        record = _committed(work.artifact, work.parts, tally, "generic") | {
            "version": VERSION,
            "configured": asdict(origin_of(config, work.task)),
            "origin": described.pop("origin"),
            "survey": described,
            "annotator": work.evidence and work.evidence.name,
            "read": survey.read,
            "beyond_limit": survey.left,
            "versions": versions("datasets", "spacy", "fastcoref"),
        }
        if work.required is not None:
            record["wanted"] = listed(work.required)
        ledger.commit(work.artifact, record, files=tally.files)
    problems = []
    for view in work.views:
        name = view.reader.key
        if tally.out(name) != accepted:
            problems.append(f"{work.task} for {name}: {accepted} rows in, {tally.out(name)} out")
            continue
        record = _committed(view.artifact, work.parts, tally, name)
        record |= {"tokenizer": name, "kind": view.reader.kind.name, "cut": tally.cut[name]}
        record["benchmark"] = work.artifact.key
        ledger.commit(view.artifact, record, files=tally.files, made_of=(work.artifact,))
    return problems


def _committed(artifact: Artifact, parts: int, tally: Tally, name: str) -> dict[str, Any]:
    """The entries of a manifest that samples and views share."""
    record: dict[str, Any] = {"task": artifact.task, "shards": shards_of(artifact, parts)}
    return record | {"rows": tally.rows[name], "rejects": tally.rejects[name]}


def _left_out(ledger: Ledger, task: str) -> list[str]:
    """Lines about the first rows of users' own samples that were left out, with file, line and reason."""
    samples = replace(samples_of(task), key=key_in(ledger.latest(samples_of(task)) or {}) or "")
    folder, store = samples.folders[1], ledger.store
    rejects: list[str] = []
    for path in store.files(folder):
        if samples.owns(path.rpartition("/")[2]):
            for row in store.read(path, REJECT).to_pylist():
                facts = filter(None, (row["where"], row["reason"], row["detail"]))
                rejects.append(f"  left out: {': '.join(facts)}")
    more = len(rejects) - MOST_TOLD
    return rejects[:MOST_TOLD] + ([f"  and {more:,} more, in {store.root}/{folder}"] if more > 0 else [])


def _accounts(ledger: Ledger, task: str, readers: list[Reader]) -> list[str]:
    """Lines that show that rows in = rows out + rejects: one for the samples, one for each tokenizer."""
    record = ledger.latest(samples_of(task))
    if record is None:
        return []
    beyond = f" + {record['beyond_limit']} beyond the limit" if record["beyond_limit"] else ""
    survey = record["survey"]
    repeated = f" + {survey['repeated']} of the same content" if survey.get("repeated") else ""
    unlabelled = f" ({survey['unlabelled']} without a label or score)" if survey.get("unlabelled") else ""
    samples = f"{record['rows']} samples{unlabelled} + {rejected(record['rejects'])}"
    lines = [f"{task}: {record['read']} rows = {samples}{repeated}{beyond}"]
    for key in dict.fromkeys(reader.key for reader in readers):
        view = ledger.latest(views_of(key, task))
        if view is not None:
            cut = f" ({view['cut']} cut to fit)" if view.get("cut") else ""
            views = f"{view['rows']} views{cut} + {rejected(view['rejects'])}"
            lines.append(f"{task}, {key}: {record['rows']} samples = {views}")
    return lines
