"""Products that a command makes as a whole, not in units of work: samples and views, and the report.

Keys of samples and of their tokenised views depend on the rows of the data, which only `closelook prepare` reads. All
other commands take the artifacts that it has entered in the ledger, with the keys in their manifests. The key of the
report covers all that the root holds when it is written; a report that was written counts as done, and `closelook
report` writes it again if its key has changed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from closelook.jobs.config import RunConfig
from closelook.jobs.plan.node import Node, Run
from closelook.jobs.products.record import Product
from closelook.jobs.store import Artifact, Ledger, key_in, key_of, samples_of, views_of
from closelook.versions import versions

REPORT_VERSION = 37  # raised when closelook writes another report of the same store
_UNLISTED = ("runtime", "pruning", "bench")  # folders with files that are in no manifest


def _entered(run: Run, artifact: Artifact) -> Iterator[Node]:
    """Yield the node of an artifact that the ledger has, with its files."""
    record = run.ledger.latest(artifact)
    key = record and key_in(record)
    if record and key:
        yield Node(artifact=replace(artifact, key=key), samples=record["rows"])


def _samples(run: Run) -> Iterator[Node]:
    """Yield the node of each task's samples that are prepared."""
    for task in run.config.tasks:
        yield from _entered(run, samples_of(task))


def _views(run: Run) -> Iterator[Node]:
    """Yield the node of each set of views that a model of the plan reads, once for models with the same tokenizer."""
    read = (inputs for model in run.plan.models for inputs in model.inputs.values())
    for artifact in dict.fromkeys(views_of(inputs.tokenizer, inputs.task) for inputs in read):
        yield from _entered(run, artifact)


SAMPLES = Product(
    name="benchmark",
    title="sets of samples",
    stage="prepare",
    nodes=_samples,
    make="closelook.jobs.stages.prepare:prepare",
)
VIEWS = Product(
    name="views",
    title="sets of tokenised views",
    stage="prepare",
    nodes=_views,
    make="closelook.jobs.stages.prepare:prepare",
)


def report_of(config: RunConfig, ledger: Ledger) -> Artifact:
    """The artifact of the report, with the key that it would have if it were written now."""
    suffixes = (".parquet", ".json")
    files = [ledger.store.files(folder, suffix, recursive=True) for folder in _UNLISTED for suffix in suffixes]
    version = [REPORT_VERSION, versions()["closelook"]]
    manifests = [record for record in ledger.records() if record[0] != "report"]
    key = key_of(version=version, config=config.model_dump(mode="json"), manifests=manifests, files=files)
    return Artifact("report", key=key)


def _report(run: Run) -> Iterator[Node]:
    """Yield the report as it was written; if none was written, as it would be now."""
    record = run.ledger.latest(Artifact("report"))
    key = record and key_in(record)
    yield Node(artifact=Artifact("report", key=key) if key else report_of(run.config, run.ledger))


REPORT = Product(
    name="report",
    title="reports",
    stage="report",
    nodes=_report,
    make="closelook.jobs.stages.report:report",
)
