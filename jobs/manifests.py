"""Closing a cell: its shards are all there, its rows add up, and the manifest says what produced it."""

from __future__ import annotations

import platform
import time
from collections import Counter
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

import pyarrow.compute as pc

from evaluation.schema import REJECT
from jobs.config import RunConfig
from jobs.methods import METHODS
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
    rejects = _rejects(store, cell, shards)
    explained = _explained(store, cell, shards)
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
        "method_version": METHODS[cell.method].version,
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


def _rejects(store: Store, cell: Cell, shards: Sequence[str]) -> Counter[str]:
    """Rejected rows by reason, of these shards."""
    folder = store.cell_rejects(cell)
    present = set(store.files(folder))
    paths = [f"{folder}/{shard}" for shard in shards if f"{folder}/{shard}" in present]
    return Counter(store.read(paths, REJECT, ["reason"])["reason"].to_pylist() if paths else [])


def _explained(store: Store, cell: Cell, shards: Sequence[str]) -> int:
    """How many different samples the shards hold."""
    from jobs.workers.tables import schema_of

    if not shards:
        return 0
    paths: list[Any] = [f"{store.cell(cell)}/{shard}" for shard in shards]
    samples = store.read(paths, schema_of(cell.product, cell.dtype), ["sample_id"])["sample_id"]
    return int(pc.count_distinct(samples).as_py())
