"""Closing a node: check that all shards exist and every sample has rows or a reject, and write the manifest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from closelook.evaluation.schema import REJECT
from closelook.jobs.plan.node import Node, Part, Run
from closelook.jobs.plan.units import FEW, REASONS_IN_DATA, Account
from closelook.jobs.products.record import Product
from closelook.jobs.store import Ledger, Store, Written
from closelook.jobs.store.files import written

#: Gives further entries of a node's manifest.
Entries = Callable[[Run, Any], Mapping[str, Any]]
#: Gives further entries of a complete node's manifest, from the paths of its shards; its `rejects` are added.
Conclusion = Callable[[Run, Any, Sequence[str]], Mapping[str, Any]]


@dataclass(frozen=True)
class Reports:
    """The reports of workers about the units of a product."""

    accounts: Mapping[str, Account]  # by path of the shard, with those of earlier runs that count
    splits: int  # how often batches were split


@dataclass(frozen=True)
class Rejects:
    """The rejects of one node."""

    rows: list[dict[str, Any]]  # of REJECT, one a sample
    counts: Counter[str]  # samples by reason
    examples: dict[str, str]  # a sample and its detail by reason
    shards: tuple[str, ...]  # names of the shards with samples that failed

    @property
    def failed(self) -> int:
        """The number of samples that failed. Rejects whose reason lies in the data (REASONS_IN_DATA) do not count."""
        return self.counts.total() - sum(self.counts[reason] for reason in REASONS_IN_DATA)


def _nothing(*_: Any) -> Mapping[str, Any]:
    """No further entries."""
    return {}


def close(
    run: Run,
    node: Node,
    shards: Sequence[str],
    reports: Reports,
    entries_of: Entries = _nothing,
    conclusion: Conclusion = _nothing,
) -> str | None:
    """Write the node's manifest: complete with all `shards`, every sample accounted for and few failures, else partial.

    Writes nothing if shards are due and none was written. `entries_of` gives further entries, `conclusion` those of a
    complete node. Returns a line if more samples failed than `max_failed_share` allows, else None.
    """
    artifact, ledger = node.artifact, run.ledger
    accounts = {}
    for shard in shards:
        path = f"{artifact.folder}/{artifact.shard(shard)}"
        if path in reports.accounts:
            accounts[path] = reports.accounts[path]
    if shards and not accounts:
        return None
    computed, rejects = _accounts(accounts)
    names = [path.rpartition("/")[2] for path in accounts]
    files = {path: file for account in accounts.values() for path, file in account.files.items()}
    files |= _write_rejects(ledger, artifact.rejects, rejects.rows)
    entries: dict[str, Any] = {"shards": names, "model": model_entry(node), "rejects": dict(rejects.counts)}
    entries["fallbacks"] = {"batches_halved": reports.splits}
    failing = False
    accounted = True
    if computed is not None:
        accounted = computed + rejects.counts.total() == node.samples
        tolerated = max(FEW, run.config.max_failed_share * node.samples) if computed else 0
        failing = rejects.failed > tolerated
        entries |= {"rows": node.samples, "explained": computed}
    complete = len(names) == len(shards) and accounted and not failing
    entries |= {"examples": rejects.examples, "again": rejects.shards if failing else []}
    if artifact.task in node.plan.inputs:
        entries["inputs"] = {"tokenizer": node.inputs.tokenizer, "sha256": node.inputs.digest}
    entries |= entries_of(run, node)
    if complete:
        concluded = dict(conclusion(run, node, list(accounts)))
        entries["rejects"] |= concluded.pop("rejects", {})
        entries |= concluded
    ledger.commit(artifact, entries, complete=complete, files=files, made_of=node.sources)
    if not failing:
        return None
    return (
        f"{artifact}: {rejects.failed} of {node.samples} rows failed ({rejected(entries)}), more than "
        f"max_failed_share: {run.config.max_failed_share:g} allows; the next run tries them again"
    )


def adopted(run: Run, product: Product, node: Node) -> dict[str, Account]:
    """The accounts of shards that an unfinished node has from earlier runs, by path. Each shard is read whole.

    Shards with too many failed samples do not count, and are computed again.
    """
    artifact = node.artifact
    again = (run.ledger.record(artifact) or {}).get("again", ())
    paths = [path for path in run.ledger.begun(artifact) if path.rpartition("/")[2] not in again]
    accounts = run.store.at_once(partial(_read_account, run.store, product, node), paths)
    return {path: account for path, account in zip(paths, accounts, strict=True) if account is not None}


def rejected(record: Mapping[str, Any]) -> str:
    """The rejects of a manifest in words: counts by reason, the most frequent first, each with an example."""
    examples = record.get("examples", {})
    counts = Counter(record["rejects"]).most_common()
    reasons = {reason: f", as {example}" for reason, example in examples.items()}
    return "; ".join(f"{count} {reason}{reasons.get(reason, '')}" for reason, count in counts)


def model_entry(node: Node) -> dict[str, str]:
    """The node's model as an entry of the manifest: its identity and id."""
    resolved = node.plan.resolved
    return {"identity": resolved.identity, "id": resolved.config.id}


def _accounts(accounts: Mapping[str, Account]) -> tuple[int | None, Rejects]:
    """(number of samples with rows, rejects) of shards by path; the number is None if rows are not of samples."""
    computed: int | None = 0
    rejects: dict[str, dict[str, Any]] = {}
    failed: list[str] = []
    for path, account in accounts.items():
        computed = None if account.explained is None or computed is None else computed + account.explained
        rejects |= {reject["sample_id"]: reject for reject in account.rejects}
        if any(reject["reason"] not in REASONS_IN_DATA for reject in account.rejects):
            failed.append(path.rpartition("/")[2])
    counts = Counter(reject["reason"] for reject in rejects.values())
    last_first = reversed(rejects.values())
    examples = {reject["reason"]: f"{reject['sample_id']}: {reject['detail']}" for reject in last_first}
    return computed, Rejects(list(rejects.values()), counts, examples, tuple(failed))


def _write_rejects(ledger: Ledger, path: str | None, rejects: list[dict[str, Any]]) -> dict[str, Written]:
    """Write the file of all rejects, or remove it if there are none. Returns it by its path."""
    if path is not None and rejects:
        return {path: ledger.store.write_shard(path, pa.Table.from_pylist(rejects, schema=REJECT), REJECT)}
    if path is not None:
        ledger.remove(path)
    return {}


def _read_account(store: Store, product: Product, node: Node, path: str) -> Account | None:
    """The account of a shard, from its file, as the worker that wrote it would have given it.

    None if the shard cannot be read, its footer has another key or unit, or another of its files is gone.
    """
    assert product.schema is not None
    artifact = node.artifact
    shard = store.read_committed(path, product.schema(artifact.dtype))
    if shard is None or shard.origin is None or shard.origin.key != artifact.key:
        return None
    files = {path: shard.written}
    first, *others = Part(node, shard.origin.unit).paths
    for other, content in zip(others, store.read_all(others), strict=True):
        if content is not None:
            files[other] = written(content)
    if first != path or len(files) < len(artifact.folders):
        return None
    of_samples = "sample_id" in shard.table.column_names
    count = pc.count_distinct(shard.table["sample_id"]).as_py() if of_samples else None
    return Account(count, shard.rejects, files=files)
