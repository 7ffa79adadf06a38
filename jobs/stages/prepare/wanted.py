"""What the store lacks of the benchmark: samples with their annotations, and their views by tokenizer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from evaluation.benchmark import sources
from evaluation.benchmark.labelled import separates
from evaluation.benchmark.pictures import Preprocessing
from evaluation.benchmark.sources import Origin, Survey
from evaluation.benchmark.sources.base import Generated
from evaluation.benchmark.sources.own import SAMPLES, Wanted
from evaluation.benchmark.views import VERSION as VIEWS_VERSION
from evaluation.benchmark.views import tokenise
from evaluation.schema import GENERIC, VIEW, titled
from jobs.config import ModelConfig, RunConfig
from jobs.plan.fits import tasks_of
from jobs.plan.hub import ModelUnavailable
from jobs.plan.models import ResolvedModel, decoder_tokenizer_of, load_tokenizer, resolve, tokenizers_key
from jobs.stages.prepare.parts import Evidence, TaskWork, ViewWork, shards_of
from jobs.store import Artifact, Ledger, key_of
from jobs.store.artifacts import samples_of, views_of
from lrp_core.kinds import Kind
from lrp_core.types import UserError

VERSION = 3  # raised when other samples or evidence come out: what older versions made is stale


@dataclass(frozen=True)
class Reader:
    """A tokenizer of the run, or settings of images, and what the models that use it can read."""

    key: str
    model: ModelConfig  # one of them, which says where the tokenizer comes from
    kind: Kind
    max_length: int
    tasks: frozenset[str]
    preprocessing: Preprocessing | None = None  # of models of images, which have no tokenizer
    labels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # of its models, by task

    def joined(self, other: Reader) -> Reader:
        """Of the models of both, which share a tokenizer."""
        tasks = self.tasks | other.tasks
        own = {task: (*self.labels.get(task, ()), *other.labels.get(task, ())) for task in tasks}
        labels = {task: tuple(dict.fromkeys(names)) for task, names in own.items()}
        return replace(self, max_length=min(self.max_length, other.max_length), tasks=tasks, labels=labels)


def readers_of(config: RunConfig) -> tuple[list[Reader], list[str]]:
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
        readers[own.key, kind.labels] = known.joined(own)
    return [reader for reader in readers.values() if reader.tasks], lines


def _reader(config: RunConfig, resolved: ResolvedModel) -> Reader:
    """What reads the samples of a model. Raises UserError where it does not fit the model or its tasks."""
    kind, max_length, tasks = resolved.kind, resolved.max_length, frozenset(tasks_of(config, resolved))
    if resolved.preprocessing is not None:
        images = resolved.preprocessing
        return Reader(images.key, resolved.config, kind, images.tokens, tasks, images)
    tokenizer, writer = load_tokenizer(resolved.config), decoder_tokenizer_of(resolved.config)
    tokenise((), tokenizer, kind=kind, max_length=max_length, decoder_tokenizer=writer)  # raises where it does not fit
    for task in tasks:
        if config.task(task).pair and not separates(tokenizer):
            raise UserError(
                f"task {task} has pairs of texts, and the tokenizer of model {resolved.config.name} puts nothing "
                "between two: leave the task out of the model's `tasks`, or give a tokenizer with a template for pairs"
            )
    labels, key = dict.fromkeys(tasks, resolved.labels), tokenizers_key(tokenizer, writer)
    return Reader(key, resolved.config, kind, max_length, tasks, labels=labels)


def work_of(config: RunConfig, ledger: Ledger, task: str, readers: list[Reader], all_reached: bool = True) -> TaskWork:
    """What the store lacks of a task; `views` are the missing ones.

    Where not `all_reached` the models of the run, labels that the samples were made with stay known.
    """
    settings, known = config.tasks[task], config.task(task)
    evidence = _evidence(config, task)
    record = ledger.latest(samples_of(task))
    entered = None if all_reached or record is None else record.get("wanted")
    wanted = wanted_of(config, task, readers, () if entered is None else entered[1:])
    survey = _survey(origin_of(config, task), record, known.parts, wanted)
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
        if task in reader.tasks:
            views.append(view)
    marked = settings.evidence if settings.output else None
    work = TaskWork(survey, samples, config.shard_rows, evidence, tuple(views), False, wanted, marked)
    lacking = tuple(view for view in views if not _is_whole(ledger, view.artifact, work.parts))
    return replace(work, views=lacking, has_generic=_is_whole(ledger, samples, work.parts))


def wanted_of(config: RunConfig, task: str, readers: list[Reader], labels_before: Sequence[str]) -> Wanted | None:
    """What every row of users' own samples with labels or scores must have; None of other tasks."""
    output = config.task(task).output
    if config.tasks[task].source != SAMPLES.name or output == "token":
        return None
    labels = [label for reader in readers for label in reader.labels.get(task, ())]
    known = [label for label in labels_before if label not in labels]
    return Wanted(output, tuple(dict.fromkeys(labels + known)) if output == "label" else ())


def _is_whole(ledger: Ledger, artifact: Artifact, parts: int) -> bool:
    """Whether it is done and has all its parts, which manifests of older versions do not list."""
    if not ledger.is_done(artifact):
        return False
    listed = "shards" in (ledger.record(artifact) or {})
    return listed or set(shards_of(artifact, parts)) <= set(ledger.shards(artifact))


def origin_of(config: RunConfig, task: str) -> Origin:
    """Where the samples of a task come from, as the config says."""
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


def _survey(origin: Origin, record: dict[str, Any] | None, part: str | None, wanted: Wanted | None) -> Survey:
    """The survey of a source: the manifest's, where its files have not changed since it was looked through."""
    asked = (asdict(origin), listed(wanted))
    if record is not None and (record["configured"], record.get("wanted")) == asked and not _is_generated(origin):
        known = Survey(origin=Origin(**record["origin"]), **record["survey"])
        if origin.path is None or sources.pinned(origin) == known.origin:
            return known
    return sources.survey(origin, part, wanted)


def listed(wanted: Wanted | None) -> list[str] | None:
    """As a manifest holds it."""
    return None if wanted is None else [wanted.output, *wanted.labels]


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
