"""Finds which artifacts of the benchmark are missing: samples with their evidence, and views by tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from closelook.evaluation.benchmark import reading
from closelook.evaluation.benchmark.labels import plain
from closelook.evaluation.benchmark.reading import Origin, Survey
from closelook.evaluation.benchmark.slotless import separates
from closelook.evaluation.benchmark.sources.base import Generated
from closelook.evaluation.benchmark.sources.own import SAMPLES, Wanted
from closelook.evaluation.benchmark.views import VERSION as VIEWS_VERSION
from closelook.evaluation.benchmark.views import tokenise
from closelook.evaluation.schema import ANSWERS_VERSION, GENERIC, VIEW, titled
from closelook.evaluation.tasks import SOURCES
from closelook.jobs.config import RunConfig
from closelook.jobs.plan.checkpoints import ModelUnavailable
from closelook.jobs.plan.models import ResolvedModel, decoder_tokenizer_of, load_tokenizer, resolve, tokenizers_key
from closelook.jobs.plan.taken import tasks_of
from closelook.jobs.stages.prepare.parts import Evidence, Reader, TaskWork, ViewWork
from closelook.jobs.store import Ledger, key_of, samples_of, views_of
from closelook.lrp_core.records.types import UserError

VERSION = 4  # raised when samples or evidence change: artifacts of older versions are stale


def readers_of(config: RunConfig) -> tuple[list[Reader], list[str]]:
    """The distinct tokenizers of the run, and a line for each model that cannot be reached.

    A tokenizer counts twice if models of words and of labels use it: they take different tasks, so that each task still
    has one view for each tokenizer. Raises UserError if models of two other kinds share a tokenizer.
    """
    readers: dict[tuple[str, bool], Reader] = {}
    lines = []
    for model in config.models:
        try:
            reader = _reader(config, resolve(model, config.seed))
        except ModelUnavailable as error:
            lines.append(f"no views for {model.name}: {error}")
            continue
        name = reader.key, reader.kind.labels
        known = readers.setdefault(name, reader)
        if known.kind != reader.kind:
            both = f"models {known.model.name} and {model.name} share a tokenizer"
            raise UserError(f"{both} and are of two kinds ({known.kind.title}, {reader.kind.title}): give each a root")
        readers[name] = known.joined(reader)
    return [reader for reader in readers.values() if reader.tasks], lines


def _reader(config: RunConfig, resolved: ResolvedModel) -> Reader:
    """The preparation of a model's samples. Raises UserError if its tokenizer does not fit the model or its tasks."""
    model, kind, max_length = resolved.config, resolved.kind, resolved.max_length
    tasks, images = frozenset(tasks_of(config, resolved)), resolved.preprocessing
    if images is not None:
        return Reader(images.key, model, kind, images.tokens, tasks, images)
    tokenizer, writer = load_tokenizer(model), decoder_tokenizer_of(model)
    tokenise((), tokenizer, kind=kind, max_length=max_length, decoder_tokenizer=writer)  # raises where it does not fit
    for task in tasks:
        if config.task(task).pair and not separates(tokenizer):
            raise UserError(
                f"task {task} has pairs of texts, and the tokenizer of model {model.name} puts nothing "
                "between two: leave the task out of the model's `tasks`, or give a tokenizer with a template for pairs"
            )
    labels, key = dict.fromkeys(tasks, (resolved.labels,)), tokenizers_key(tokenizer, writer)
    return Reader(key, model, kind, max_length, tasks, labels=labels)


def work_of(config: RunConfig, ledger: Ledger, task: str, readers: list[Reader], all_reached: bool) -> TaskWork:
    """The missing artifacts of a task.

    If some model cannot be reached (`all_reached` False), the labels with which the samples were made stay known.
    """
    settings, known = config.tasks[task], config.task(task)
    evidence = _evidence(config, task)
    record = ledger.latest(samples_of(task))
    entered = None if all_reached or record is None else record.get("wanted")
    required = required_of(config, task, readers, entered["labels"] if entered else ())
    survey = _survey(origin_of(config, task), record, known.parts, required)
    parts = -(-(survey.drawn + survey.rejected) // config.shard_rows)
    numbers = {
        "version": VERSION,
        "schema": titled(GENERIC),
        "source": settings.source,
        "survey": [survey.digest, survey.rejected],
        "annotator": evidence and evidence.name,
        "part_rows": config.shard_rows,
    }
    if settings.evidence is not None:
        numbers["marked"] = settings.evidence
    samples = replace(samples_of(task), key=key_of(**numbers))
    views = []
    for reader in readers:
        options = [reader.kind.name, reader.max_length, settings.truncate, known.answer, known.words, known.beginning]
        if settings.first_piece:
            options.append("first_piece")
        if known.explains_answers:
            options += ["answers", ANSWERS_VERSION, settings.units]
        key = key_of(
            version=VIEWS_VERSION, schema=titled(VIEW), samples=samples.key, tokenizer=reader.key, options=options
        )
        artifact = replace(views_of(reader.key, task), key=key)
        if task in reader.tasks and not ledger.is_done(artifact):
            views.append(ViewWork(artifact, reader))
    has_generic = ledger.is_done(samples)
    return TaskWork(survey, samples, parts, config.shard_rows, evidence, tuple(views), has_generic, required)


def required_of(config: RunConfig, task: str, readers: list[Reader], labels_before: Sequence[str]) -> Wanted | None:
    """The fields that rows of users' own samples must have, such as labels that models know; None for other tasks."""
    settings, known = config.tasks[task], config.task(task)
    if settings.source != SAMPLES.name:
        return None
    output = known.output
    if output != "label":
        return Wanted(output, evidence=settings.evidence, answers=known.explains_answers)
    of_models = dict.fromkeys(labels for reader in readers for labels in reader.labels.get(task, ()))
    numbered = len({tuple(map(plain, labels)) for labels in of_models}) <= 1
    names = [name for labels in of_models for name in labels]
    return Wanted(output, tuple(dict.fromkeys([*names, *labels_before])), numbered, settings.evidence)


def origin_of(config: RunConfig, task: str) -> Origin:
    """The origin of a task's samples, as the config names it."""
    shared = {"source", "path", "hub", "revision", "sha256", "limit", "balance", "columns"}
    return Origin(task=task, seed=config.seed, **config.tasks[task].model_dump(include=shared))


def _survey(origin: Origin, record: dict[str, Any] | None, part: str | None, required: Wanted | None) -> Survey:
    """The survey of a source: that in the manifest if it is of this version and of the same files, else a new one."""
    generated = isinstance(SOURCES[origin.source], Generated)
    configured = (origin, listed(required))
    if record is None or generated or record.get("version") != VERSION:
        return reading.survey(origin, part, required)
    if (Origin(**record["configured"]), record.get("wanted")) == configured:
        known = Survey(origin=Origin(**record["origin"]), **record["survey"])
        if origin.path is None or reading.pinned(origin) == known.origin:
            return known
    return reading.survey(origin, part, required)


def listed(required: Wanted | None) -> dict[str, Any] | None:
    """The demands on rows as an entry of a manifest."""
    return None if required is None else asdict(required) | {"labels": list(required.labels)}


def _evidence(config: RunConfig, task: str) -> Evidence | None:
    """The annotator that finds a task's evidence; None if the task has no evidence, or if its source brings it."""
    settings, kind = config.tasks[task], config.task(task).evidence
    if kind is None or kind == "source" or SOURCES[settings.source].brings_evidence:
        return None
    from closelook.evaluation.benchmark import annotate  # takes seconds, and the demo does without

    parser = annotate.pipeline(settings.spacy)
    # Coreference finds antecedents; under "sample" each sample names its kind of evidence, which may be an antecedent.
    coref = settings.coref if kind in ("antecedent", "sample") else None
    return Evidence(kind, parser, coref, annotate.identity(parser, coref))
