"""Scores of relevance against evidence, keyed by the relevance, the evidence and the metrics with their versions."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa

from evaluation.schema import VIEW
from evaluation.scoring.metrics import scored_by
from evaluation.scoring.samples import VIEW_COLUMNS
from jobs.plan.products.record import Product, Wanted, each_method
from jobs.store import Artifact, Ledger, Store, key_of

if TYPE_CHECKING:
    from jobs.config import RunConfig
    from jobs.plan.cells import Plan


def wanted(config: RunConfig, plan: Plan, ledger: Ledger) -> Iterator[Wanted]:
    """The scores of every planned relevance cell."""
    evidence: dict[str, str] = {}
    for model in plan.models:
        for planned in model.cells:
            cell = planned.cell
            if cell.product != "relevance":
                continue
            views = model.inputs[cell.task].folder
            if views not in evidence:
                evidence[views] = _digest(ledger.store, views)
            metrics, labels = scored_by(config.task(cell.task)), model.resolved.labels
            key = key_of(relevance=cell.key, evidence=evidence[views], metrics=metrics, labels=labels)
            yield Wanted(scores_of(cell, key), planned.rows, (cell,))


def scores_of(cell: Artifact, key: str = "") -> Artifact:
    """In the place of a relevance cell."""
    return Artifact("scores", cell.model, cell.task, cell.dtype, cell.method, key)


def _digest(store: Store, views: str) -> str:
    """A hash of everything in the views that scores depend on."""
    table = store.read(views, VIEW, VIEW_COLUMNS).replace_schema_metadata(None).combine_chunks()
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return hashlib.sha256(sink.getvalue()).hexdigest()


SCORES = Product(
    name="scores",
    heading="scores",
    plural="scores",
    stage="evaluate",
    wanted=wanted,
    expected=each_method,
    outdated="scores of relevance or evidence that is no longer there",
)
