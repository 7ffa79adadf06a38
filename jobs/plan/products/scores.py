"""Scores of relevance against evidence, keyed by the relevance, the evidence and the metrics with their versions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from evaluation import schema as schemas
from evaluation.schema import VIEW
from evaluation.scoring.metrics import BY_LAYER, METRICS, scored_by, shown
from evaluation.scoring.samples import VIEW_COLUMNS
from jobs.plan.inputs import Inputs, digest_of
from jobs.plan.products.record import Product, Wanted, each_method
from jobs.plan.products.relevance import layers_of
from jobs.store import Artifact, Ledger, Store, key_of

if TYPE_CHECKING:
    from jobs.config import ModelConfig, RunConfig
    from jobs.plan.cells import ModelPlan, Plan, PlannedCell


Metrics = list[list[str | int]]  # of `scored_by`


def wanted(config: RunConfig, plan: Plan, ledger: Ledger) -> Iterator[Wanted]:
    """The scores of every planned relevance cell."""
    for model, planned, evidence in _held_against(plan, ledger, "relevance"):
        cell, labels = planned.cell, model.resolved.labels
        schema, own = schemas.titled(schemas.SCORES), scored_by(config.task(cell.task))
        made = partial(key_of, schema=schema, relevance=cell.key, evidence=evidence, labels=labels)
        scores = scores_of(cell, made(metrics=own))
        with_more = _with_lacking(own, ledger.latest(scores) or {})
        if with_more is not None and ledger.is_done(more := scores_of(cell, made(metrics=with_more))):
            scores = more
        yield Wanted(scores, planned.rows, (cell,))


def _with_lacking(own: Metrics, record: Mapping[str, Any]) -> Metrics | None:
    """The metrics that scores were made of, where they are `own` and others that no installed package brings."""
    entered = _metrics_in(record)
    known = [entry for entry in entered if not entry[0] or entry[0] in METRICS]
    return entered if known == own and len(entered) > len(own) else None


def _metrics_in(record: Mapping[str, Any]) -> Metrics:
    """The metrics of a manifest of scores; none of one of an earlier version, which had a number in their place."""
    metrics = record.get("metrics")
    return metrics if isinstance(metrics, list) else []


def metrics_lacking(ledger: Ledger) -> list[str]:
    """Metrics of the store's scores that no installed package brings."""
    entered = (entry[0] for _, record in ledger.records("scores") for entry in _metrics_in(record))
    return [f"metric {name!r}" for name in dict.fromkeys(entered) if name and name not in METRICS]


def wanted_by_layer(config: RunConfig, plan: Plan, ledger: Ledger) -> Iterator[Wanted]:
    """The scores, layer by layer, of every planned cell of layers whose task has a metric that layers are held to."""
    for model, planned, evidence in _held_against(plan, ledger, "layers"):
        cell, metrics = planned.cell, metrics_of_layers(config, planned.cell.task)
        if metrics:
            numbers = {"evidence": evidence, "metrics": metrics, "labels": model.resolved.labels}
            written = [schemas.titled(schema) for schema in (schemas.LAYER_SCORES, schemas.LAYER_SCORES_SAMPLES)]
            key = key_of(schema=written, layers=cell.key, without="slots", **numbers)
            scores = Artifact("layer_scores", cell.model, cell.task, cell.dtype, cell.method, key)
            yield Wanted(scores, planned.rows, (cell,))


def metrics_of_layers(config: RunConfig, task: str) -> list[list[str | int]]:
    """The metrics of layers that apply to the task, as `scored_by` has them; nothing where none does."""
    known = scored_by(config.task(task))
    names = {"", *shown(BY_LAYER)}
    own = [entry for entry in known if entry[0] in names]
    return own if len(own) > 1 else []


def _held_against(plan: Plan, ledger: Ledger, product: str) -> Iterator[tuple[ModelPlan, PlannedCell, str]]:
    """Planned cells of a product, each with its model and a hash of what its views have for scores."""
    evidence: dict[str, str] = {}
    for model in plan.models:
        for planned in model.cells:
            if planned.cell.product == product:
                views = model.inputs[planned.cell.task]
                if views.folder not in evidence:
                    evidence[views.folder] = _digest(ledger.store, views)
                yield model, planned, evidence[views.folder]


def scores_of(cell: Artifact, key: str = "") -> Artifact:
    """The scores at the place of a relevance cell."""
    return Artifact("scores", cell.model, cell.task, cell.dtype, cell.method, key)


def _digest(store: Store, views: Inputs) -> str:
    """A hash of everything in the views that scores depend on."""
    stamps = store.stamps(views.folder)
    return store.kept(
        ("evidence", views.folder), stamps, lambda: digest_of(store.read(views.paths, VIEW, VIEW_COLUMNS))
    )


SCORES = Product(
    name="scores",
    heading="scores",
    plural="scores",
    stage="evaluate",
    wanted=wanted,
    expected=each_method,
    outdated="scores of relevance or evidence that is no longer there",
)


def _expected_by_layer(config: RunConfig, model: ModelConfig, task: str, methods: list[str]) -> dict[str, int]:
    return layers_of(config, model, task, methods) if metrics_of_layers(config, task) else {}


LAYER_SCORES = Product(
    name="layer_scores",
    heading="layer scores",
    plural="scores",
    stage="evaluate",
    wanted=wanted_by_layer,
    expected=_expected_by_layer,
    outdated="scores of layers or evidence that are no longer there",
)
