"""Prepare: sources become generic samples with evidence, and tokenised views for every tokenizer of the run.

The driver looks through each source once (what it holds, what is drawn, how much is broken) and works out what the
store lacks. Ray Data then streams parts of the sources to workers, which annotate, tokenise and commit them. A task is
done when its rows add up: rows read = accepted + rejected + beyond the limit, and accepted = views + view rejects.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import chain
from typing import Any

import pyarrow as pa
from rich.console import Console
from rich.progress import track

from evaluation.benchmark import sources
from evaluation.benchmark.audit import rejected, table
from evaluation.benchmark.labelled import separates
from evaluation.benchmark.pictures import Preprocessing
from evaluation.benchmark.sources import Origin, Survey
from evaluation.benchmark.sources.base import Generated
from evaluation.benchmark.views import VERSION as VIEWS_VERSION
from evaluation.benchmark.views import tokenise
from evaluation.schema import GENERIC, VIEW, titled
from jobs.cluster.pools import connect
from jobs.commands.audit import audit_table
from jobs.config import ModelConfig, RunConfig
from jobs.plan.fits import tasks_of
from jobs.plan.hub import ModelUnavailable
from jobs.plan.models import ResolvedModel, load_tokenizer, resolve, tokenizer_key
from jobs.stages.prepare.parts import Evidence, PartWorker, Tally, TaskWork, ViewWork, parts_of, read_parts
from jobs.stages.summary import StageSummary
from jobs.store import Ledger, Store, key_of
from jobs.store.artifacts import samples_of, views_of
from jobs.versions import versions
from lrp_core.kinds import Kind
from lrp_core.types import UserError

VERSION = 3  # raised when other samples or evidence come out: what older versions made is stale
DRIVER_ROWS = 3000  # up to so many rows, starting a worker takes longer than the work
READER_BLOCK_BYTES = 1 << 16  # parts leave the reader one by one


@dataclass(frozen=True)
class Reader:
    """A tokenizer of the run, or settings of images, and what the models that use it can read."""

    key: str
    model: ModelConfig  # one of them, which says where the tokenizer comes from
    kind: Kind
    max_length: int
    tasks: frozenset[str]
    preprocessing: Preprocessing | None = None  # of models of images, which have no tokenizer


def prepare(config: RunConfig, store: Store) -> StageSummary:
    """Make what is missing of the benchmark.

    Raises UserError, before anything is written, for a source that cannot be had, whose checksum changed or whose rows
    are all broken, for a missing annotator, and for a tokenizer that does not fit its model.
    """
    readers, lines = _readers(config)
    lines = [f"left out: {line}" for line in config.left_out] + lines
    ledger = Ledger(store)
    plans = {task: _plan(config, ledger, task, readers) for task in config.tasks}
    work = {task: plan for task, plan in plans.items() if not plan.has_generic or plan.views}
    for plan in work.values():
        _clear(ledger, plan)
    tallies = _run(config, store, work, readers) if work else {}
    failures: list[str] = []
    computed = 0
    for task, plan in work.items():
        failures += _close(config, ledger, plan, tallies[task])
        computed += (not plan.has_generic) + len(plan.views)
    for task in config.tasks:
        lines += _accounts(ledger, task, readers)
    if computed and not failures:
        lines += table(audit_table(config, store, list(config.tasks)))
    wanted = len(config.tasks) + sum(len(reader.tasks) for reader in readers)
    return StageSummary("prepare", computed - len(failures), wanted - computed, tuple(failures), tuple(lines))


def _readers(config: RunConfig) -> tuple[list[Reader], list[str]]:
    """The distinct tokenizers, of models of words and of labels each, and a line for each model that is out of reach.

    Models of labels take other tasks than those of words do, so that a task has one view for each tokenizer.
    """
    readers: dict[tuple[str, bool], Reader] = {}
    lines = []
    for model in config.models:
        try:
            resolved = resolve(model, config.seed)
            own = _reader(config, resolved)
        except ModelUnavailable as error:
            lines.append(f"no views for {model.name}: {error}")
            continue
        kind = own.kind
        known = readers.setdefault((own.key, kind.labels), own)
        if known.kind != own.kind:
            both = f"models {known.model.name} and {model.name} share a tokenizer"
            raise UserError(f"{both}, and are of two kinds: {known.kind.title} and {own.kind.title}")
        length = min(known.max_length, own.max_length)
        readers[own.key, kind.labels] = replace(known, max_length=length, tasks=known.tasks | own.tasks)
    return [reader for reader in readers.values() if reader.tasks], lines


def _reader(config: RunConfig, resolved: ResolvedModel) -> Reader:
    """What reads the samples of a model. Raises UserError where it does not fit the model or its tasks."""
    kind, max_length, tasks = resolved.kind, resolved.max_length, frozenset(tasks_of(config, resolved))
    if resolved.preprocessing is not None:
        images = resolved.preprocessing
        return Reader(images.key, resolved.config, kind, images.tokens, tasks, images)
    tokenizer = load_tokenizer(resolved.config)
    tokenise((), tokenizer, kind=kind, max_length=max_length)  # raises where it does not fit
    for task in tasks:
        if config.task(task).pair and not separates(tokenizer):
            raise UserError(
                f"task {task} has pairs of texts, and the tokenizer of model {resolved.config.name} puts nothing "
                "between two: leave the task out of the model's `tasks`, or give a tokenizer with a template for pairs"
            )
    return Reader(tokenizer_key(tokenizer), resolved.config, kind, max_length, tasks)


def _plan(config: RunConfig, ledger: Ledger, task: str, readers: list[Reader]) -> TaskWork:
    """What the store lacks of a task; `views` are the missing ones."""
    settings, known = config.tasks[task], config.task(task)
    evidence = _evidence(config, task)
    record = ledger.latest(samples_of(task))
    survey = _survey(_origin(config, task), record, known.parts)
    key = key_of(
        version=VERSION,
        schema=titled(GENERIC),
        source=settings.source,
        survey=[survey.digest, survey.rejected],
        annotator=evidence and evidence.name,
        part_rows=config.shard_rows,
        **({"marked": True} if settings.evidence else {}),
    )
    samples, views = replace(samples_of(task), key=key), []
    for reader in readers:
        options = (reader.max_length, settings.truncate, known.answer, known.words, known.beginning)
        asked = [reader.kind.name, *options, *(["first_piece"] if settings.first_piece else [])]
        key = key_of(
            version=VIEWS_VERSION, schema=titled(VIEW), samples=samples.key, tokenizer=reader.key, options=asked
        )
        artifact = replace(views_of(reader.key, task), key=key)
        view = ViewWork(artifact, reader.kind, *options, settings.first_piece, reader.preprocessing)
        if task in reader.tasks and not ledger.is_done(view.artifact):
            views.append(view)
    marked = settings.evidence if settings.output else None
    return TaskWork(survey, samples, config.shard_rows, evidence, tuple(views), ledger.is_done(samples), marked)


def _origin(config: RunConfig, task: str) -> Origin:
    settings = config.tasks[task]
    return Origin(
        task=task,
        source=settings.source,
        path=settings.path,
        hub=settings.hub,
        revision=settings.revision,
        sha256=settings.sha256,
        limit=settings.limit,
        seed=config.seed,
        balance=settings.balance,
    )


def _survey(origin: Origin, record: dict[str, Any] | None, part: str | None) -> Survey:
    """The survey of a source: the manifest's, where its files have not changed since it was looked through."""
    if record is not None and record["configured"] == asdict(origin) and not _is_generated(origin):
        known = Survey(origin=Origin(**record["origin"]), **record["survey"])
        if origin.path is None or sources.pinned(origin) == known.origin:
            return known
    return sources.survey(origin, part)


def _is_generated(origin: Origin) -> bool:
    return isinstance(sources.source_of(origin.source), Generated)


def _evidence(config: RunConfig, task: str) -> Evidence | None:
    """Raises UserError when the annotator that the task needs is missing."""
    settings, kind = config.tasks[task], config.task(task).evidence
    if kind is None or kind == "source" or sources.source_of(settings.source).brings_evidence:
        return None
    from evaluation.benchmark import annotate  # takes seconds, and the demo does without

    parser = annotate.pipeline(settings.spacy)
    coref = settings.coref if kind in ("antecedent", "sample") else None
    return Evidence(kind, parser, coref, annotate.identity(parser, coref))


def _clear(ledger: Ledger, work: TaskWork) -> None:
    """Remove what another source, annotator or tokenizer left; shards of this very work stay."""
    for artifact in (*(() if work.has_generic else (work.artifact,)), *(view.artifact for view in work.views)):
        ledger.forget(artifact)


def _run(config: RunConfig, store: Store, work: dict[str, TaskWork], readers: list[Reader]) -> dict[str, Tally]:
    """Commits every part of every task."""
    models = {reader.key: reader.model for reader in readers}
    if sum(plan.survey.drawn for plan in work.values()) <= DRIVER_ROWS:
        worker = PartWorker(store, work, models)
        parts = chain.from_iterable(parts_of(plan) for plan in work.values())
        reports: Iterable[str] = (worker(part)["report"][0].as_py() for part in parts)
    else:
        reports = _stream(config, store, work, models)
    tallies = {task: Tally() for task in work}
    for text in _shown(reports, sum(plan.parts for plan in work.values())):
        report = json.loads(text)
        tallies[report["task"]].add(report)
    return tallies


def _stream(
    config: RunConfig, store: Store, work: dict[str, TaskWork], models: dict[str, ModelConfig]
) -> Iterator[str]:
    """The Ray Data pipeline: read the sources part by part, where their files are, and let workers commit the parts."""
    connect(config)
    import ray.data

    parts = sum(plan.parts for plan in work.values())
    workers = max(1, min(int(ray.cluster_resources().get("CPU", 1)), parts // 2))
    here = {"ray.io/node-id": ray.get_runtime_context().get_node_id()}
    dataset = (
        ray.data.from_arrow([pa.table({"task": [task]}) for task in work])
        .map_batches(
            partial(read_parts, work=work), batch_size=1, batch_format="pyarrow", num_cpus=0, label_selector=here
        )
        .map_batches(
            PartWorker,
            fn_constructor_args=[store, work, models],
            compute=ray.data.ActorPoolStrategy(size=workers),
            batch_size=1,
            batch_format="pyarrow",
            num_cpus=1,
        )
    )
    dataset.set_name("prepare")
    dataset.context.enable_progress_bars = False
    dataset.context.target_max_block_size = READER_BLOCK_BYTES
    dataset.context.execution_no_progress_timeout_s = config.ray.no_progress_timeout_s
    for row in dataset.iter_rows():
        yield row["report"]


def _shown(reports: Iterable[str], parts: int) -> Iterator[str]:
    """`reports` as they come, with a bar in a terminal and a line every ten seconds elsewhere."""
    console = Console(stderr=True)
    if console.is_terminal:
        yield from track(reports, "prepare", parts, console=console, transient=True)
        return
    last = time.monotonic()
    for done, report in enumerate(reports, start=1):
        if time.monotonic() - last >= 10.0:
            last = time.monotonic()
            console.print(f"prepare: {done}/{parts} parts", highlight=False)
        yield report


def _close(config: RunConfig, ledger: Ledger, work: TaskWork, tally: Tally) -> list[str]:
    """Writes the manifests of a task whose rows add up. Returns what does not, one line each."""
    if tally.error:
        return [f"{work.task}: {tally.error}"]
    survey, accepted = work.survey, tally.rows["generic"]
    if tally.out("generic") != survey.drawn + survey.rejected:
        return [f"{work.task}: {survey.drawn + survey.rejected} rows in, {tally.out('generic')} out"]
    settings = config.model_dump(mode="json")
    if not work.has_generic:
        record = {
            "task": work.task,
            "configured": asdict(_origin(config, work.task)),
            "origin": asdict(survey.origin),
            "survey": {name: value for name, value in asdict(survey).items() if name != "origin"},
            "annotator": work.evidence and work.evidence.name,
            "read": survey.read,
            "beyond_limit": survey.left,
            "rows": accepted,
            "rejects": tally.rejects["generic"],
            "versions": versions("datasets", "spacy", "fastcoref"),
        }
        ledger.commit(work.artifact, record, config=settings)
    problems = []
    for view in work.views:
        name = view.tokenizer
        if tally.out(name) != accepted:
            problems.append(f"{work.task} for {name}: {accepted} rows in, {tally.out(name)} out")
            continue
        record = {
            "task": work.task,
            "tokenizer": name,
            "kind": view.kind.name,
            "benchmark": work.artifact.key,
            "rows": tally.rows[name],
            "cut": tally.cut[name],
            "rejects": tally.rejects[name],
        }
        ledger.commit(view.artifact, record, config=settings)
    return problems


def _accounts(ledger: Ledger, task: str, readers: list[Reader]) -> list[str]:
    """Rows in = rows out + rejects, a line for the samples and one for each tokenizer."""
    record = ledger.latest(samples_of(task))
    if record is None:
        return []
    beyond = f" + {record['beyond_limit']} beyond the limit" if record["beyond_limit"] else ""
    lines = [f"{task}: {record['read']} rows = {record['rows']} samples + {rejected(record['rejects'])}{beyond}"]
    for key in dict.fromkeys(reader.key for reader in readers):
        view = ledger.latest(views_of(key, task))
        if view is not None:
            cut = f" ({view['cut']} cut to fit)" if view.get("cut") else ""
            views = f"{view['rows']} views{cut} + {rejected(view['rejects'])}"
            lines.append(f"{task}, {key}: {record['rows']} samples = {views}")
    return lines
