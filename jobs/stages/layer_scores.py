"""Part of `evaluate`: complete cells of layers become scores, layer by layer, on the driver."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from evaluation.schema import LAYER_SCORES as SCHEMA
from evaluation.schema import LAYERS, VIEW, layer_scores_samples_schema
from evaluation.scoring.layers import score_layers
from evaluation.scoring.metrics import METRICS
from evaluation.scoring.samples import VIEW_COLUMNS, Masks, Mismatch
from jobs.config import RunConfig
from jobs.plan.cells import ModelPlan, Plan
from jobs.plan.products.scores import LAYER_SCORES, metrics_of_layers
from jobs.store import Artifact, Ledger, StoreError


@dataclass(frozen=True)
class LayersScored:
    """What became of the scores that a run wants of layers."""

    computed: int = 0
    skipped: int = 0
    unfinished: int = 0  # whose cells are not complete
    failures: tuple[str, ...] = ()


def score_by_layer(config: RunConfig, plan: Plan, ledger: Ledger) -> LayersScored:
    """Score every complete cell of layers that has no scores yet; scores of cells that are not complete go."""
    store, masks = ledger.store, dict[tuple[str, str], Masks]()
    models = {model.name: model for model in plan.models}
    computed, skipped, unfinished, failures = 0, 0, 0, []
    for one in LAYER_SCORES.wanted(config, plan, ledger):
        (cell,) = one.of
        if not ledger.is_done(cell):
            if ledger.described_damage(cell) is None:  # else they are right once the cell's shards are made again
                ledger.forget(one.artifact)
            unfinished += 1
        elif ledger.is_done(one.artifact):
            skipped += 1
        else:
            ledger.forget(one.artifact)  # before its file, whose name tells no key, has other numbers
            place = (cell.model, cell.task)
            if place not in masks:
                masks[place] = _masks(ledger, models[cell.model], cell.task)
            scored_by = metrics_of_layers(config, cell.task)
            own = {name: METRICS[name] for name in (str(entry[0]) for entry in scored_by) if name}
            try:
                tables = score_layers(ledger.read(cell, LAYERS), masks[place], own)
            except (Mismatch, StoreError) as error:
                failures.append(f"{cell}: {error}")
                continue
            schemas = (SCHEMA, layer_scores_samples_schema(own))
            written = zip(one.artifact.folders, tables, schemas, strict=True)
            for folder, table, schema in reversed(list(written)):
                store.write_shard(f"{folder}/{one.artifact.shard()}", _of_cell(table, cell, schema), schema)
            record = {"layers": cell.name, "metrics": scored_by}
            ledger.commit(one.artifact, record, config=config.model_dump(mode="json"))
            computed += 1
    return LayersScored(computed, skipped, unfinished, tuple(failures))


def _masks(ledger: Ledger, model: ModelPlan, task: str) -> Masks:
    """The masks, without the slots of masked models, as NormXLogit has it: the head reads the target mostly there."""
    inputs, resolved = model.inputs[task], model.resolved
    views = ledger.store.read(inputs.paths, VIEW, [*VIEW_COLUMNS, "position"])
    masks = Masks.of(views, resolved.label_ids(inputs.labels))
    return masks.without_slots(views["position"].to_numpy()) if resolved.kind.slot else masks


def _of_cell(table: pa.Table, cell: Artifact, schema: pa.Schema) -> pa.Table:
    for name in ("model", "task", "dtype", "method"):
        table = table.append_column(name, pa.array(np.full(len(table), getattr(cell, name)), pa.string()))
    return table.select(schema.names)
