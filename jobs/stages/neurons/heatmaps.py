"""Heat maps of contexts: which ones on the driver, what they are in a worker, which has the model open."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from evaluation.benchmark.contexts import batches
from evaluation.schema import CONTEXTS, HEATMAPS
from jobs.config import RunConfig
from jobs.plan.inputs import without_samples
from jobs.plan.products.heatmaps import FIRST, HeatmapsCell
from jobs.stages.neurons.merged import Merged
from jobs.stages.neurons.writings import named_by
from jobs.store import Artifact, Ledger, Store

if TYPE_CHECKING:
    from lrp_core import ModelView


@dataclass(frozen=True)
class HeatmapTask:
    """Neurons of one layer whose contexts are explained together."""

    title: str
    path: str
    contexts: str  # the shard of contexts of the layer
    layer: int
    neurons: tuple[int, ...]
    method: str
    token_budget: int


def tasks_of(config: RunConfig, ledger: Ledger, cell: HeatmapsCell) -> list[HeatmapTask]:
    """The tasks of all layers, the lowest first. Their neurons are stored already; their contexts need not be."""
    by_layer: dict[int, list[int]] = {}
    for layer, neuron in named_by(ledger, cell.neurons, cell.ranks):
        by_layer.setdefault(layer, []).append(neuron)
    own, contexts = cell.artifact, cell.contexts.artifact
    budget = cell.model.resolved.config.token_budget or config.token_budget
    return [
        HeatmapTask(
            f"heatmaps.{own.model}.{own.task}.{own.dtype}.{layer_name(layer)}",
            _path(own, layer),
            f"{contexts.folder}/{contexts.shard(layer_name(layer))}",
            layer,
            tuple(neurons),
            cell.method,
            budget,
        )
        for layer, neurons in by_layer.items()
    ]


def blocks_of(config: RunConfig, ledger: Ledger, cell: HeatmapsCell) -> Iterator[Callable[[], pa.Table]]:
    """A unit for each layer that is not explained yet."""
    for task in tasks_of(config, ledger, cell):
        if not ledger.store.exists(task.path):
            yield partial(without_samples, task)


def complete(config: RunConfig, ledger: Ledger, cell: HeatmapsCell) -> None:
    """Enter what is there of contexts that are."""
    layers = sorted({layer for layer, _ in named_by(ledger, cell.neurons, cell.ranks)})
    shards, present = [cell.artifact.shard(layer_name(layer)) for layer in layers], ledger.sizes(cell.artifact)
    if all(map(ledger.is_done, cell.of)) and all(shard in present for shard in shards):
        record = {
            "shards": shards,
            "contexts": cell.contexts.artifact.name,
            "neurons": [neurons.name for neurons in cell.neurons],
            "model": {"identity": cell.model.resolved.identity, "id": cell.model.resolved.config.id},
        }
        ledger.commit(cell.artifact, record, config=config.model_dump(mode="json"), sizes=present)


def layer_name(layer: int) -> str:
    """The name of the shard of one layer."""
    return f"layer-{layer:03d}"


def stored(store: Store, task: HeatmapTask) -> Iterator[dict[str, Any]]:
    """The contexts that are explained, from their shard: rows of CONTEXTS."""
    table = store.read(task.contexts, CONTEXTS)
    there = pc.and_(pc.less_equal(table["rank"], FIRST), pc.is_in(table["neuron"], pa.array(task.neurons, pa.int32())))
    yield from table.filter(there).to_pylist()


def from_merged(merged: Merged, texts: pa.Table, task: HeatmapTask) -> list[dict[str, Any]]:
    """Rows as those of `stored`, of a corpus that is not stored yet; `texts` has the contexts by `key`."""
    wanted = (merged.layer == task.layer) & np.isin(merged.neuron, task.neurons)
    contexts = merged.of(wanted).contexts(texts)
    return contexts.filter(pc.less_equal(contexts["rank"], FIRST)).to_pylist()


def explained(view: ModelView, rows: Iterable[Mapping[str, Any]], method: str, token_budget: int) -> pa.Table:
    """The table of schema HEATMAPS. Batches depend on the rows and the budget alone."""
    from lrp_core.contexts import Context, explain_contexts

    every = list(rows)
    relevance: list[Sequence[float] | None] = [None] * len(every)
    for part in batches([len(row["input_ids"]) for row in every], token_budget):
        asked = []
        for row in (every[at] for at in part):
            context = Context(row["activation"], -row["rank"], row["position"], tuple(row["input_ids"]))
            asked.append((context, row["layer"], row["neuron"]))
        for at, own in zip(part, explain_contexts(view, asked, method), strict=True):
            relevance[at] = own if all(map(math.isfinite, own)) else None
    columns = {name: [row[name] for row in every] for name in ("layer", "neuron", "rank")}
    return pa.table(columns | {"relevance": relevance}, schema=HEATMAPS)


def _path(artifact: Artifact, layer: int) -> str:
    return f"{artifact.folder}/{artifact.shard(layer_name(layer))}"
