"""Closing a node: check that all shards exist and every sample has rows or a reject, and write the manifest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from closelook.evaluation.schema import REJECT
from closelook.jobs.plan.node import Node, Part, Run
from closelook.jobs.plan.units import FEW, REASONS_IN_DATA, Account
from closelook.jobs.products.record import Product
from closelook.jobs.store import Store
from closelook.jobs.store.files import written


def close(
    run: Run, node: Node, shards: Sequence[str], accounts: Mapping[str, Account], product: Product, splits: int
) -> str | None:
    """Write the node's manifest: complete with all `shards`, every sample accounted for and few failures, else partial.

    Writes nothing if shards are due and none was written. `splits` counts the batches that were halved. Returns a line
    if more samples failed than `max_failed_share` allows, else None.
    """
    artifact, ledger = node.artifact, run.ledger
    paths = [f"{artifact.folder}/{artifact.shard(shard)}" for shard in shards]
    known = {path: accounts[path] for path in paths if path in accounts}
    if shards and not known:
        return None
    files = {path: file for account in known.values() for path, file in account.files.items()}
    rejects = {reject["sample_id"]: reject for account in known.values() for reject in account.rejects}
    if rejects and artifact.rejects is not None:
        table = pa.Table.from_pylist(list(rejects.values()), schema=REJECT)
        files[artifact.rejects] = ledger.store.write_shard(artifact.rejects, table, REJECT)
    elif artifact.rejects is not None:
        ledger.remove(artifact.rejects)
    counts = Counter(reject["reason"] for reject in rejects.values())
    examples = {reject["reason"]: f"{reject['sample_id']}: {reject['detail']}" for reject in reversed(rejects.values())}
    entries: dict[str, Any] = {"shards": list(map(_name, known)), "model": model_entry(node), "rejects": dict(counts)}
    entries["fallbacks"] = {"batches_halved": splits}
    failed = counts.total() - sum(counts[reason] for reason in REASONS_IN_DATA)
    failing = False
    accounted = True
    explained = [account.explained for account in known.values()]
    if None not in explained:  # otherwise rows are not of samples
        computed = sum(filter(None, explained))
        accounted = computed + counts.total() == node.samples
        tolerated = max(FEW, run.config.max_failed_share * node.samples) if computed else 0
        failing = failed > tolerated
        entries |= {"rows": node.samples, "explained": computed}
    complete = len(known) == len(shards) and accounted and not failing
    again = [_name(path) for path, account in known.items() if failing and account.failures]
    entries |= {"examples": examples, "again": again}
    if artifact.task in node.plan.inputs:
        entries["inputs"] = {"tokenizer": node.inputs.tokenizer, "sha256": node.inputs.digest}
    entries |= product.entries(run, node)
    if complete:
        concluded = dict(product.conclude(run, node, list(known)))
        entries["rejects"] |= concluded.pop("rejects", {})
        entries |= concluded
    ledger.commit(artifact, entries, complete=complete, files=files, made_of=node.sources)
    if not failing:
        return None
    return (
        f"{artifact}: {failed} of {node.samples} rows failed ({rejected(entries)}), more than "
        f"max_failed_share: {run.config.max_failed_share:g} allows; the next run tries them again"
    )


def adopted(run: Run, product: Product, node: Node) -> dict[str, Account]:
    """The accounts of shards that an unfinished node has from earlier runs, by path. Each shard is read whole.

    Shards with too many failed samples do not count, and are computed again.
    """
    artifact = node.artifact
    again = (run.ledger.record(artifact) or {}).get("again", ())
    paths = [path for path in run.ledger.begun(artifact) if _name(path) not in again]
    accounts = run.store.at_once(partial(_read_account, run.store, product, node), paths)
    return {path: account for path, account in zip(paths, accounts, strict=True) if account is not None}


def _name(path: str) -> str:
    """The file name in a path."""
    return path.rpartition("/")[2]


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
