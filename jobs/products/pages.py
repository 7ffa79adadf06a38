"""The report: a single artifact, whose key covers all that the root holds when it is written.

A report that was written counts as done; `closelook report` computes the key anew and writes it again if it has
changed.
"""

from __future__ import annotations

from collections.abc import Iterator

from jobs.config import RunConfig
from jobs.plan.node import Node, Run
from jobs.products.record import Product
from jobs.store import Artifact, Ledger, key_of
from jobs.store.records import key_in
from jobs.versions import versions

VERSION = 24  # raised when closelook writes another report of the same store
_UNLISTED = ("runtime", "pruning", "bench")  # folders with files that are in no manifest


def report_of(config: RunConfig, ledger: Ledger) -> Artifact:
    """The artifact of the report, with the key that it would have if it were written now."""
    files = []
    for folder in _UNLISTED:
        for suffix in (".parquet", ".json"):
            files.append(ledger.store.files(folder, suffix, recursive=True))
    version = [VERSION, versions()["closelook"]]
    manifests = [record for record in ledger.records() if record[0] != "report"]
    key = key_of(version=version, config=config.model_dump(mode="json"), manifests=manifests, files=files)
    return Artifact("report", key=key)


def _nodes(run: Run) -> Iterator[Node]:
    """Yield the report as it was written; if none was written, as it would be now."""
    record = run.ledger.latest(Artifact("report"))
    key = record and key_in(record)
    yield Node(artifact=Artifact("report", key=key) if key else report_of(run.config, run.ledger))


REPORT = Product(
    name="report",
    title="reports",
    stage="report",
    nodes=_nodes,
    make="jobs.stages.report:report",
)
