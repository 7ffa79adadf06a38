"""The benchmark's samples, and their tokenised views, which `closelook prepare` makes.

Their keys depend on the rows of the data, which only `prepare` reads. All other commands take the artifacts that
`prepare` has entered in the ledger, with the keys in their manifests. Views that are not prepared yet are counted by
`expected`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from jobs.config import ModelConfig, RunConfig
from jobs.plan.node import Node, Run
from jobs.products.record import Product
from jobs.store import Artifact
from jobs.store.artifacts import samples_of, views_of
from jobs.store.records import key_in


def _entered(run: Run, artifact: Artifact) -> Iterator[Node]:
    """Yield the node of an artifact that the ledger has, with its files; manifests of older versions list none."""
    record = run.ledger.latest(artifact)
    key = record and key_in(record)
    if record and key and "shards" in record:
        yield Node(artifact=replace(artifact, key=key), samples=record["rows"])


def _samples(run: Run) -> Iterator[Node]:
    """Yield the node of each task's samples that are prepared."""
    for task in run.config.tasks:
        yield from _entered(run, samples_of(task))


def _views(run: Run) -> Iterator[Node]:
    """Yield the node of each set of views that a model of the plan reads, once for models with the same tokenizer."""
    read = (inputs for model in run.plan.models for inputs in model.inputs.values())
    for artifact in dict.fromkeys(views_of(inputs.tokenizer, inputs.task) for inputs in read):
        yield from _entered(run, artifact)


def _expected_views(config: RunConfig, model: ModelConfig, task: str, methods: list[str]) -> dict[str, int]:
    """One set of views for each model and task, whatever the precision."""
    return {"": 1}


SAMPLES = Product(
    name="benchmark",
    title="sets of samples",
    stage="prepare",
    nodes=_samples,
    make="jobs.stages.prepare:prepare",
)
VIEWS = Product(
    name="views",
    title="sets of tokenised views",
    stage="prepare",
    nodes=_views,
    expected=_expected_views,
    make="jobs.stages.prepare:prepare",
)
