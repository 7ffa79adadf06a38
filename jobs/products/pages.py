"""The report: a single artifact, keyed by all that the root holds when it is written.

One that was written counts as done: `closelook report` finds out whether it would look different now.
"""

from __future__ import annotations

from collections.abc import Iterator

from jobs.config import RunConfig
from jobs.plan.node import Node, Run
from jobs.products.record import Product
from jobs.store import Artifact, Ledger, key_of
from jobs.store.records import key_in
from jobs.versions import versions

VERSION = 24  # raised when a report of the same store looks different
_UNLISTED = ("runtime", "pruning", "bench")  # folders with files that no manifest lists


def report_of(config: RunConfig, ledger: Ledger) -> Artifact:
    """The report as it is to be written now: anything else that is entered gives it another key."""
    files = []
    for folder in _UNLISTED:
        for suffix in (".parquet", ".json"):
            files.append(ledger.store.files(folder, suffix, recursive=True))
    key = key_of(
        version=[VERSION, versions()["closelook"]],
        config=config.model_dump(mode="json"),
        manifests=[record for record in ledger.records() if record[0] != "report"],
        files=files,
    )
    return Artifact("report", key=key)


def _nodes(run: Run) -> Iterator[Node]:
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
