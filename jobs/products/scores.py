"""Scores of relevance against evidence, keyed by the relevance, the evidence and the metrics with their versions.

A cell has scores only once it is complete: there is never a mean over some of its samples.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from closelook.evaluation import schema as schemas
from closelook.evaluation.schema import RELEVANCE, VIEW, SchemaMismatch, scores_samples_schema
from closelook.evaluation.scoring.means import Means
from closelook.evaluation.scoring.metrics import BY_LAYER, METRICS, scored_by, shown
from closelook.evaluation.scoring.samples import RELEVANCE_COLUMNS, VARIANT, VIEW_COLUMNS, Masks, Mismatch
from closelook.jobs.config import RunConfig
from closelook.jobs.plan.inputs import Inputs, digest_of
from closelook.jobs.plan.node import Cell, ModelPlan, Node, Part, Run
from closelook.jobs.plan.units import Account
from closelook.jobs.products.record import Made, NodeFailed, Opened, Product, Row, Unit
from closelook.jobs.store import Artifact, Store, StoreError

Metrics = list[list[str | int]]  # of `scored_by`
ROWS_AT_ONCE = 1 << 18  # scores that are sorted and written together


@dataclass(frozen=True, eq=False, kw_only=True)
class ScoresNode(Node):
    """The scores of one cell."""

    scored_by: Metrics
    views: tuple[str, ...]  # shards of the views, which have the evidence
    label_ids: Mapping[str, int] = field(default_factory=dict)  # the model's number of each gold label
    values: int = 0  # about how many numbers the relevance has

    @property
    def metrics(self) -> list[str]:
        """The names of the metrics."""
        return [str(name) for name, _ in self.scored_by if name]

    @property
    def cell(self) -> Artifact:
        """The cell that is scored."""
        return self.made_of[0]


@dataclass(frozen=True, eq=False, kw_only=True)
class LayerScoresNode(ScoresNode):
    """The scores of one cell of layers, layer by layer."""

    #: Leave out the mask token of masked models, as NormXLogit does: the head mostly reads the target there.
    without_slots: bool = False


def nodes(run: Run) -> Iterator[Node]:
    """The scores of every planned cell of relevance of tokens."""
    known: dict[str, Metrics] = {}  # by task
    for model, cell, evidence in _held_against(run, "relevance"):
        task = cell.artifact.task
        if task not in known:
            known[task] = scored_by(run.config.task(task))
        yield _scores(model, cell, evidence, known[task])


def _scores(model: ModelPlan, cell: Cell, evidence: str, metrics: Metrics) -> ScoresNode:
    """The node of a cell's scores by `metrics`; `evidence` is a hash of the evidence."""
    values = model.inputs[cell.artifact.task].tokens * len(cell.requests)
    key_fields = {"schema": schemas.titled(schemas.SCORES), "evidence": evidence}
    return ScoresNode(values=values, **_fields_of("scores", model, cell, metrics, key_fields))


def _fields_of(
    product: str, model: ModelPlan, cell: Cell, metrics: Metrics, key_fields: Mapping[str, Any]
) -> dict[str, Any]:
    """The fields that nodes of both kinds of scores have in common; `key_fields` are further fields of the key."""
    scored, inputs = cell.artifact, model.inputs[cell.artifact.task]
    shared = {scored.product: scored.key, "labels": model.resolved.labels, "metrics": metrics}
    return {
        "artifact": Artifact(product, *scored.columns),
        "key_fields": {**shared, **key_fields},
        "samples": cell.samples,
        "made_of": (scored,),
        "model": model,
        "scored_by": metrics,
        "views": inputs.paths,
        "label_ids": model.resolved.label_ids(inputs.labels),
    }


def nodes_by_layer(run: Run) -> Iterator[Node]:
    """The scores, layer by layer, of every planned cell of layers whose task has a metric for layers."""
    written = [schemas.titled(schema) for schema in (schemas.LAYER_SCORES, schemas.LAYER_SCORES_SAMPLES)]
    for model, cell, evidence in _held_against(run, "layers"):
        task = cell.artifact.task
        metrics = metrics_of_layers(run.config, task)
        if metrics:
            key_fields = {"schema": written, "without": "slots", "evidence": evidence}
            fields = _fields_of("layer_scores", model, cell, metrics, key_fields)
            has_slots = bool(model.resolved.kind.slot)
            yield LayerScoresNode(values=model.inputs[task].tokens, without_slots=has_slots, **fields)


def metrics_of_layers(config: RunConfig, task: str) -> Metrics:
    """The metrics for layers that apply to the task, as `scored_by` lists them; empty if none applies."""
    known = scored_by(config.task(task))
    names = {"", *shown(BY_LAYER)}
    of_layers = [entry for entry in known if entry[0] in names]
    return of_layers if len(of_layers) > 1 else []


def _held_against(run: Run, product: str) -> Iterator[tuple[ModelPlan, Cell, str]]:
    """Yield planned cells of `product` that are scored, as (model, cell, hash of the evidence of its samples)."""
    for model in run.plan.models:
        for cell in model.cells:
            views = model.inputs[cell.artifact.task]
            if cell.artifact.product == product and not views.of_answers:  # units of answers are scored
                yield model, cell, views.kept("evidence", partial(_evidence, run.store, views))


def _evidence(store: Store, views: Inputs) -> str:
    """A hash of everything in the views that scores depend on."""
    return digest_of(store.read(views.paths, VIEW, VIEW_COLUMNS))


def units(run: Run, nodes: Sequence[ScoresNode]) -> Iterator[Unit]:
    """Yield a unit for each cell, which reads all of the cell's shards and writes one file of scores."""
    for node in nodes:
        relevance = tuple(run.ledger.files(node.cell))
        part = Part(node, shard="", inputs=relevance)  # one file, whose name has no unit
        yield Unit(node.artifact.method, (part,), tokens=node.values, size=1)  # it has no rows


def compute(opened: Opened, parts: Sequence[Part], rows: Sequence[Row]) -> Mapping[Part, Made | NodeFailed]:
    """The means of a cell's scores.

    The scores of all samples are written to a second file while they are computed, some rows at a time, to save memory.
    """
    (part,) = parts
    node: ScoresNode = part.node
    lacking = [name for name in node.metrics if name not in METRICS]
    if lacking:
        return {part: NodeFailed(f"a node of the cluster lacks the metric {lacking[0]}: install its package there")}
    try:
        means = Means(_masks(opened, node), {name: METRICS[name] for name in node.metrics})
        schema = scores_samples_schema(METRICS)
        scored = _samples(opened.store, node, part.inputs, means)
        written = opened.store.write_parts(part.paths[1], scored, schema)
    except (Mismatch, SchemaMismatch, StoreError) as error:
        return {part: NodeFailed(str(error))}
    facts = {"defects": dict(means.defects)}
    return {part: Made(_with_place(means.table(), node.cell), facts=facts, written={part.paths[1]: written})}


def _masks(opened: Opened, node: ScoresNode) -> Masks:
    """The evidence of the node's samples. It is kept in memory, since the cells of a task have it in common."""
    key = node.views, dict(node.label_ids)
    return opened.remembered(
        "masks", key, lambda: Masks.of(opened.store.read(node.views, VIEW, VIEW_COLUMNS), node.label_ids)
    )


def _samples(store: Store, node: ScoresNode, shards: Sequence[str], means: Means) -> Iterator[pa.Table]:
    """Yield the scores of all samples in tables of about ROWS_AT_ONCE rows; `means` adds them up."""
    nothing = (RELEVANCE.empty_table().select(RELEVANCE_COLUMNS),)  # for a cell without samples
    parts: list[pa.Table] = []
    rows = 0
    for relevance in store.read_each(shards, RELEVANCE, RELEVANCE_COLUMNS) if shards else nothing:
        parts.append(means.add(relevance))
        rows += len(parts[-1])
        if rows >= ROWS_AT_ONCE:
            yield _finished(parts, node)
            parts, rows = [], 0
    if parts:
        yield _finished(parts, node)


def _finished(parts: Sequence[pa.Table], node: ScoresNode) -> pa.Table:
    """The tables as one, sorted, with the columns of a cell and nulls for metrics that do not apply to it."""
    samples = pa.concat_tables(parts).sort_by([(name, "ascending") for name in [*VARIANT, "sample_id"]])
    for other in METRICS.keys() - set(node.metrics):
        samples = samples.append_column(other, pa.nulls(len(samples), pa.float32()))
    return _with_place(samples, node.cell)


def _with_place(table: pa.Table, cell: Artifact) -> pa.Table:
    """The table with the columns `model`, `task`, `dtype` and `method` of a cell, each a dictionary of one value."""
    for name in ("model", "task", "dtype", "method"):
        column = pa.DictionaryArray.from_arrays(np.zeros(len(table), np.int8), pa.array([getattr(cell, name)]))
        table = table.append_column(name, column)
    return table


def close(run: Run, node: ScoresNode, shards: Sequence[str], accounts: Mapping[str, Account]) -> None:
    """Write the manifest of a cell's scores, if a worker of this run computed them."""
    account = accounts.get(Part(node, "").paths[0])
    if account is not None:
        record = {node.cell.product: node.cell.name, "metrics": node.scored_by, **account.facts}
        run.ledger.commit(node.artifact, record, files=account.files, made_of=node.made_of)


SCORES = Product(
    name="scores",
    title="scores",
    stage="evaluate",
    nodes=nodes,
    schema=lambda dtype: schemas.SCORES,
    units=units,
    compute=compute,
    close=close,
    on_model=False,
)


def compute_by_layer(opened: Opened, parts: Sequence[Part], rows: Sequence[Row]) -> Mapping[Part, Made | NodeFailed]:
    """Two tables of scores by layer: their means, and those of every sample."""
    from closelook.evaluation.scoring.means import score_layers

    (part,) = parts
    node: LayerScoresNode = part.node
    metrics = {name: METRICS[name] for name in node.metrics}
    samples_schema = schemas.layer_scores_samples_schema(metrics)
    try:
        masks = _masks(opened, node)
        if node.without_slots:
            views = opened.store.read(node.views, VIEW, ["position"])
            masks = masks.without_slots(views["position"].to_numpy())
        relevance = opened.store.read(part.inputs, schemas.LAYERS) if part.inputs else schemas.LAYERS.empty_table()
        means, samples = score_layers(relevance, masks, metrics)
    except (Mismatch, SchemaMismatch, StoreError) as error:
        return {part: NodeFailed(str(error))}
    of_samples = _with_place(samples, node.cell).select(samples_schema.names).cast(samples_schema)
    return {part: Made(_with_place(means, node.cell), beside=(of_samples,))}


LAYER_SCORES = Product(
    name="layer_scores",
    title="scores by layer",
    stage="evaluate",
    nodes=nodes_by_layer,
    schema=lambda dtype: schemas.LAYER_SCORES,
    units=units,
    compute=compute_by_layer,
    close=close,
    on_model=False,
)
