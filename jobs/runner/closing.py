"""Closing a node: its shards are all there, its samples add up, and the manifest says what produced it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from evaluation.schema import REJECT
from jobs.plan.node import Node, Run
from jobs.plan.units import FEW, UNASKED
from jobs.products.record import Product
from jobs.runner.task import Account
from jobs.store import Store

#: Gives further entries of a node's manifest.
Entries = Callable[[Run, Node], Mapping[str, Any]]
#: Gives further entries of a complete node's manifest, from the paths of its shards; `rejects` join those there are.
Conclusion = Callable[[Run, Node, Sequence[str]], Mapping[str, Any]]


@dataclass(frozen=True)
class Told:
    """The reports of workers about the units of a product."""

    product: Product  # that the shards are of
    accounts: Mapping[str, Account]  # by path of a shard
    splits: int


@dataclass(frozen=True)
class Rejects:
    """The rejects of one node."""

    counts: Counter[str]  # samples by reason
    examples: dict[str, str]  # a sample and its detail by reason
    shards: tuple[str, ...]  # those with samples that failed

    @property
    def failed(self) -> int:
        """Samples that failed; the others have nothing to compute."""
        return self.counts.total() - sum(self.counts[reason] for reason in UNASKED)


def close(
    run: Run,
    node: Node,
    shards: Sequence[str],
    told: Told,
    entries_of: Entries | None = None,
    conclusion: Conclusion | None = None,
) -> str | None:
    """Enter the node in the ledger: complete with all its `shards` and every sample accounted for, else partial.

    Shards that no worker of this run reported are read for their rejects. Returns the reason why a node with every
    shard is partial all the same: too many of its samples failed.
    """
    artifact, ledger = node.artifact, run.ledger
    present = ledger.sizes(artifact)
    written = [name for shard in shards if (name := artifact.shard(shard)) in present]
    if shards and not written:
        return None
    computed, rejects = _accounts(run, node, written, told)
    entries: dict[str, Any] = {"shards": written, "model": _model(node), "rejects": dict(rejects.counts)}
    failing = False
    accounted = True
    if computed is not None:
        accounted = computed + rejects.counts.total() == node.samples
        tolerated = max(FEW, run.config.max_failed_share * node.samples) if computed else 0
        failing = rejects.failed > tolerated
        entries |= {"rows": node.samples, "explained": computed, "fallbacks": {"batches_halved": told.splits}}
    complete = len(written) == len(shards) and accounted and not failing
    entries |= {"examples": rejects.examples, "again": rejects.shards if failing else []}
    if artifact.task in node.plan.inputs:
        inputs = node.plan.inputs[artifact.task]
        entries["inputs"] = {"tokenizer": inputs.tokenizer, "sha256": inputs.digest}
    if entries_of is not None:
        entries |= entries_of(run, node)
    if complete and conclusion is not None:
        concluded = dict(conclusion(run, node, [f"{artifact.folder}/{name}" for name in written]))
        entries["rejects"] |= concluded.pop("rejects", {})
        entries |= concluded
    settings = run.config.model_dump(mode="json")
    ledger.commit(artifact, entries, config=settings, complete=complete, sizes=_sizes(node, present))
    if not failing:
        return None
    return (
        f"{artifact}: {rejects.failed} of {node.samples} rows failed ({rejected(entries)}), more than "
        f"max_failed_share: {run.config.max_failed_share:g} allows; the next run tries them again"
    )


def committed(run: Run, node: Node) -> set[str]:
    """File names of the shards that the node has, but for those that are tried again since too much of them failed."""
    again = (run.ledger.record(node.artifact) or {}).get("again", ())
    return set(run.ledger.shards(node.artifact)) - set(again)


def rejected(record: Mapping[str, Any]) -> str:
    """The rejects of a manifest in words, the most frequent reason first, each with an example."""
    examples = record.get("examples", {})
    counts = Counter(record["rejects"]).most_common()
    reasons = {reason: f", as {example}" for reason, example in examples.items()}
    return "; ".join(f"{count} {reason}{reasons.get(reason, '')}" for reason, count in counts)


def _model(node: Node) -> dict[str, Any]:
    resolved = node.plan.resolved
    return {"identity": resolved.identity, "id": resolved.config.id}


def _sizes(node: Node, present: Mapping[str, int]) -> Mapping[str, int] | None:
    """The bytes of shards as the ledger takes them: known of an artifact of one folder."""
    return present if len(node.artifact.folders) == 1 else None


def _accounts(run: Run, node: Node, shards: Sequence[str], told: Told) -> tuple[int | None, Rejects]:
    """The number of samples that have rows, None where rows are not of samples; and the rejects, which get a file."""
    artifact, store = node.artifact, run.store
    computed: int | None = 0
    rejects: dict[str, dict[str, Any]] = {}
    failed: list[str] = []
    for shard in shards:
        path = f"{artifact.folder}/{shard}"
        count, rejected_here, _ = told.accounts.get(path) or _read_account(run, node, told.product, path)
        computed = None if count is None or computed is None else computed + count
        rejects |= {reject["sample_id"]: reject for reject in rejected_here}
        if any(reject["reason"] not in UNASKED for reject in rejected_here):
            failed.append(shard)
    _write_rejects(store, artifact.rejects, list(rejects.values()))
    counts = Counter(reject["reason"] for reject in rejects.values())
    last_first = reversed(rejects.values())
    examples = {reject["reason"]: f"{reject['sample_id']}: {reject['detail']}" for reject in last_first}
    return computed, Rejects(counts, examples, tuple(failed))


def _write_rejects(store: Store, path: str | None, rejects: list[dict[str, Any]]) -> None:
    if path is None:
        return
    if rejects:
        store.write_shard(path, pa.Table.from_pylist(rejects, schema=REJECT), REJECT)
    else:
        store.delete(path)


def _read_account(run: Run, node: Node, product: Product, path: str) -> Account:
    """The account that a worker would have given of a shard; units have no sample in common."""
    assert product.schema is not None
    schema = product.schema(node.artifact.dtype)
    of_samples = "sample_id" in schema.names
    rows, rejects = run.store.read_shard(path, schema, ["sample_id"] if of_samples else schema.names[:1])
    return pc.count_distinct(rows["sample_id"]).as_py() if of_samples else None, rejects, {}
