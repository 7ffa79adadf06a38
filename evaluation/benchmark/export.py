"""The generic benchmark as a folder that `datasets` loads: a Parquet file for each shard, and a dataset card."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from jinja2 import Environment, PackageLoader, StrictUndefined

from evaluation.benchmark.audit import Audit, table
from evaluation.tasks import SOURCES, TASKS, Task
from lrp_core.records.types import UserError


def export(
    shards: Mapping[str, Iterable[pa.Table]],
    records: Mapping[str, Mapping[str, Any]],
    audit: Audit,
    to: Path,
    tasks: Mapping[str, Task] = TASKS,
) -> list[Path]:
    """Write `to`/<task>/*.parquet and the card `to`/README.md, and return the files written.

    `shards`, `records` (what the manifests say) and `audit` are by task.

    Raises UserError when the folder is not empty or cannot be written.
    """
    if to.is_dir() and any(to.iterdir()):
        raise UserError(f"{to} is not empty; give a new folder")
    written = []
    try:
        for task, tables in shards.items():
            (to / task).mkdir(parents=True, exist_ok=True)
            for number, table in enumerate(tables):
                written.append(to / task / f"{number:05d}.parquet")
                pq.write_table(table, written[-1])
        written.append(to / "README.md")
        written[-1].write_text(card(records, audit, tasks), encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot write to {to}: {error.strerror}") from error
    return written


def card(
    records: Mapping[str, Mapping[str, Any]],
    audit: Audit,
    tasks: Mapping[str, Task] = TASKS,
) -> str:
    """The dataset card, with the front matter that tells `datasets` where each task is."""
    environment = Environment(
        loader=PackageLoader("evaluation", "benchmark"), undefined=StrictUndefined, trim_blocks=True, autoescape=False
    )
    listed = [tasks[name] for name in records]
    lines = "\n".join(table(audit))
    return environment.get_template("card.md").render(records=records, tasks=listed, sources=SOURCES, table=lines)
