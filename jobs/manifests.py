"""Closing a cell: its shards are all there, its rows add up, and the manifest says what produced it."""

from __future__ import annotations

import platform
import time
from collections import Counter
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

import pyarrow as pa

from evaluation.schema import REJECT
from jobs.config import RunConfig
from jobs.methods import configured
from jobs.plan import ModelPlan, PlannedCell, shards_of
from jobs.store import Cell, Store
from jobs.workers.units import Unit


def completed_units(store: Store, cell: Cell, units: Sequence[Unit]) -> set[str]:
    """Names of the units whose shard the cell has."""
    shards = set(shards_of(store, cell))
    return {unit.name for unit in units if unit.shard(cell.key) in shards}


def complete_cell(
    config: RunConfig, store: Store, model: ModelPlan, planned: PlannedCell, units: Sequence[Unit], splits: int
) -> bool:
    """Write the cell's manifest, as complete if it has every shard and every row is accounted for, else as partial."""
    cell = planned.cell
    done = completed_units(store, cell, units)
    shards = [unit.shard(cell.key) for unit in units if unit.name in done]
    explained, rejects = _accounts(store, cell, shards)
    complete = len(done) == len(units) and explained + sum(rejects.values()) == planned.rows
    if not shards:
        return False
    record = {
        "state": "complete" if complete else "partial",
        "cell": vars(cell),
        "rows": planned.rows,
        "explained": explained,
        "rejects": dict(rejects),
        "shards": shards,
        "fallbacks": {"batches_halved": splits},
        "model": {"identity": model.resolved.identity, "id": model.resolved.config.id},
        "inputs": {"tokenizer": model.inputs[cell.task].tokenizer, "sha256": model.inputs[cell.task].digest},
        "method": configured(config)[cell.method].key(),
        "variants": [[request.explanation, request.embedding] for request in planned.requests],
        "config": config.model_dump(mode="json"),
        "versions": versions(),
        "written": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
    store.write_manifest(cell.name, record)
    return complete


def versions() -> dict[str, str]:
    """Of everything that computes."""
    packages = ("closelook", "torch", "transformers", "accelerate", "ray", "pyarrow", "numpy")
    return {"python": platform.python_version(), **{package: version(package) for package in packages}}


def _accounts(store: Store, cell: Cell, shards: Sequence[str]) -> tuple[int, Counter[str]]:
    """How many different samples the shards hold, and their rejects by reason, which become the cell's file of them."""
    from jobs.workers.tables import schema_of

    samples: set[str] = set()
    rejects: list[dict[str, Any]] = []
    for shard in shards:
        path, schema = f"{store.cell(cell)}/{shard}", schema_of(cell.product, cell.dtype)
        rows, rejected = store.read_shard(path, schema, ["sample_id"])
        samples.update(rows["sample_id"].to_pylist())
        rejects += rejected
    if rejects:
        store.write_shard(store.cell_rejects(cell), pa.Table.from_pylist(rejects, schema=REJECT), REJECT)
    else:
        store.delete(store.cell_rejects(cell))
    return len(samples), Counter(reject["reason"] for reject in rejects)
