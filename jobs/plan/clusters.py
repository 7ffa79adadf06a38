"""The clusters of samples: intervals count clusters, and halves of the samples keep them together."""

from __future__ import annotations

import pyarrow.compute as pc

from closelook.evaluation.schema import GENERIC
from closelook.jobs.store import Ledger, samples_of


def clusters_of(ledger: Ledger, task: str) -> dict[str, str]:
    """The cluster of each sample of a task, by sample id; samples without one are left out.

    Raises Damaged if the files are not those that the manifest lists.
    """
    shards = ledger.files_at(samples_of(task))

    def read() -> dict[str, str]:
        table = ledger.store.read(shards, GENERIC, ["sample_id", "cluster"])
        table = table.filter(pc.field("cluster").is_valid())
        return dict(zip(table["sample_id"].to_pylist(), table["cluster"].to_pylist(), strict=True))

    record = ledger.latest(samples_of(task)) or {}
    return ledger.store.kept(("clusters", task), record["files"], read) if shards else {}
