"""Closing a cell: its shards are all there, its rows add up, and the manifest says what produced it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from evaluation.schema import REJECT
from jobs.config import RunConfig
from jobs.methods import configured
from jobs.plan.cells import ModelPlan, PlannedCell
from jobs.plan.units import FEW, UNASKED, Unit
from jobs.store import Artifact, Ledger, Store


@dataclass(frozen=True)
class Rejects:
    """The rejects of one cell."""

    counts: Counter[str]  # rows by reason
    examples: dict[str, str]  # a sample and its detail by reason
    shards: tuple[str, ...]  # those with rows that failed

    @property
    def failed(self) -> int:
        """Rows whose explanation failed; the others have nothing to explain."""
        return self.counts.total() - sum(self.counts[reason] for reason in UNASKED)


def completed_units(ledger: Ledger, cell: Artifact, units: Sequence[Unit]) -> set[str]:
    """Names of the units whose shard the cell has, but for those to be tried again since too much of it failed."""
    shards = set(ledger.shards(cell)) - set((ledger.record(cell) or {}).get("again", ()))
    return {unit.name for unit in units if cell.shard(unit.name) in shards} if shards else set()


#: By path of a shard, what its worker reported when it was committed: samples explained, and rejects.
Accounts = Mapping[str, tuple[int, list[dict[str, Any]]]]


def complete_cell(
    config: RunConfig,
    ledger: Ledger,
    model: ModelPlan,
    planned: PlannedCell,
    units: Sequence[Unit],
    splits: int,
    conclusion: Callable[[Sequence[str]], Mapping[str, Any]] = lambda shards: {},
    accounts: Accounts = MappingProxyType({}),
) -> str | None:
    """Write the cell's manifest, as complete if it has every shard and every row is accounted for, else as partial.

    `conclusion` gives further entries of a complete one from the paths of its shards. Shards without `accounts`, as
    those of an earlier run, are read for them.
    Returns why a cell with every shard is partial all the same: too many of its rows failed.
    """
    cell = planned.cell
    present = ledger.sizes(cell)
    shards = [shard for unit in units if (shard := cell.shard(unit.name)) in present]
    if units and not shards:
        return None
    explained, rejects = _accounts(ledger.store, cell, shards, accounts)
    tolerated = max(FEW, config.max_failed_share * planned.rows) if explained else 0
    failing = rejects.failed > tolerated
    accounted = len(shards) == len(units) and explained + rejects.counts.total() == planned.rows
    record = {
        "rows": planned.rows,
        "explained": explained,
        "rejects": dict(rejects.counts),
        "examples": rejects.examples,
        "shards": shards,
        "again": rejects.shards if failing else [],
        "fallbacks": {"batches_halved": splits},
        "model": {"identity": model.resolved.identity, "id": model.resolved.config.id},
        "inputs": {"tokenizer": model.inputs[cell.task].tokenizer, "sha256": model.inputs[cell.task].digest},
        "method": configured(config)[cell.method].configured(**planned.chosen).key(),
        "variants": [[request.explanation, request.embedding] for request in planned.requests],
    }
    complete = accounted and not failing
    concluded = conclusion([f"{cell.folder}/{shard}" for shard in shards]) if complete else {}
    settings = config.model_dump(mode="json")
    ledger.commit(cell, {**record, **concluded}, config=settings, complete=complete, sizes=present)
    if not failing:
        return None
    return (
        f"{cell}: {rejects.failed} of {planned.rows} rows failed ({rejected(record)}), more than "
        f"max_failed_share: {config.max_failed_share:g} allows; the next run tries them again"
    )


def rejected(record: dict[str, Any]) -> str:
    """The rejects of a cell's manifest in words, the most frequent reason first, each with an example."""
    examples = record["examples"]
    counts = Counter(record["rejects"]).most_common()
    return "; ".join(f"{count} {reason}, as {examples[reason]}" for reason, count in counts)


def _accounts(store: Store, cell: Artifact, shards: Sequence[str], accounts: Accounts) -> tuple[int, Rejects]:
    """How many samples the shards explain, and their rejects, which become the cell's file of them."""
    explained = 0
    rejects: list[dict[str, Any]] = []
    failed: list[str] = []
    for shard in shards:
        path = f"{cell.folder}/{shard}"
        count, rejected = accounts[path] if path in accounts else _read_account(store, cell, path)
        explained += count
        rejects += rejected
        if any(reject["reason"] not in UNASKED for reject in rejected):
            failed.append(shard)
    assert cell.rejects is not None
    if rejects:
        store.write_shard(cell.rejects, pa.Table.from_pylist(rejects, schema=REJECT), REJECT)
    else:
        store.delete(cell.rejects)
    counts = Counter(reject["reason"] for reject in rejects)
    examples = {reject["reason"]: f"{reject['sample_id']}: {reject['detail']}" for reject in reversed(rejects)}
    return explained, Rejects(counts, examples, tuple(failed))


def _read_account(store: Store, cell: Artifact, path: str) -> tuple[int, list[dict[str, Any]]]:
    """What a worker would have reported of a shard; units have no sample in common."""
    from jobs.plan.schemas import schema_of

    rows, rejected = store.read_shard(path, schema_of(cell.product, cell.dtype), ["sample_id"])
    return pc.count_distinct(rows["sample_id"]).as_py(), rejected
