"""The benchmark's samples and their tokenised views, which `prepare` makes.

Their keys cover the rows of a source, and only `prepare` looks through sources: the nodes are the artifacts that were
entered, under the keys of their manifests. Views that are not prepared are counted by `expected`.
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
    """The node of an artifact that is entered with its files, as manifests of older versions are not."""
    record = run.ledger.latest(artifact)
    key = record and key_in(record)
    if record and key and "shards" in record:
        yield Node(artifact=replace(artifact, key=key), samples=record["rows"])


def _samples(run: Run) -> Iterator[Node]:
    for task in run.config.tasks:
        yield from _entered(run, samples_of(task))


def _views(run: Run) -> Iterator[Node]:
    read = (inputs for model in run.plan.models for inputs in model.inputs.values())
    for artifact in dict.fromkeys(views_of(inputs.tokenizer, inputs.task) for inputs in read):
        yield from _entered(run, artifact)


def _expected_views(config: RunConfig, model: ModelConfig, task: str, methods: list[str]) -> dict[str, int]:
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
