"""The counts and shares that `closelook audit` prints, and the samples from which they are computed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from closelook.evaluation.benchmark import audit as figures
from closelook.evaluation.schema import GENERIC, VIEW
from closelook.jobs.config import RunConfig
from closelook.jobs.store import Artifact, Columns, Damaged, Ledger, Store, samples_of, views_of


def audit_table(config: RunConfig, store: Store, tasks: list[str]) -> dict[str, dict[str, dict[str, Any]]]:
    """{task: {tokenizer: figures}}, where rows_in = accepted + all rejects.

    Raises UserError for a task that is not prepared.
    """
    tables: dict[str, dict[str, dict[str, Any]]] = {}
    ledger = Ledger(store)
    for name in tasks:
        record, task = record_of(ledger, name), config.task(name)
        shares = task.share if task.is_published(record["origin"]["source"]) else {}
        samples = figures.of_samples(samples_in(ledger, name, figures.GENERIC_COLUMNS))
        parts = figures.members(samples_in(ledger, name, figures.GENERIC_COLUMNS), task.parts) if task.parts else {}
        rows_of_parts, repeated = record["survey"].get("parts", {}), record["survey"].get("repeated", 0)
        tables[name] = {}
        for _, view in ledger.records("views"):
            if (view["task"], view["benchmark"]) != (name, record["key"]):
                continue
            views = views_of(view["tokenizer"], name)
            row = {"rows_in": record["read"] - record["beyond_limit"] - repeated, "repeated": repeated}
            row["beyond_limit"] = record["beyond_limit"]
            row |= figures.of_views(_shards(ledger, views, VIEW, figures.VIEW_COLUMNS))
            row["rejects"] = dict(Counter(record["rejects"]) + Counter(view["rejects"]))
            row["paper_share"] = shares.get(view["kind"])
            tokens = _shards(ledger, views, VIEW, figures.VIEW_COLUMNS)
            row |= {**samples, "parts": figures.of_parts(tokens, parts, rows_of_parts)}
            tables[name][view["tokenizer"]] = row
    return tables


def record_of(ledger: Ledger, task: str) -> dict[str, Any]:
    """The manifest of the task's samples. Raises Damaged, which a run mends, if they are not prepared."""
    record = ledger.latest(samples_of(task))
    if record is None:
        raise Damaged(
            f"task {task} is not prepared in {ledger.store.root}: run `closelook prepare` with the same --config and "
            "--root"
        )
    return record


def samples_in(ledger: Ledger, task: str, columns: Columns = None) -> Iterator[pa.Table]:
    """Yield the shards of the task's samples. Raises Damaged if they differ from their manifest."""
    return _shards(ledger, samples_of(task), GENERIC, columns)


def _shards(ledger: Ledger, place: Artifact, schema: pa.Schema, columns: Columns) -> Iterator[pa.Table]:
    """Yield the shards of the artifact in this place."""
    return ledger.store.read_each(ledger.files_at(place), schema, columns)
