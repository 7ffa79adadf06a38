"""Small runs on the CPU: their configs with tasks of the demo, and made-up tables for their stores."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from closelook.evaluation.schema import VIEW
from closelook.jobs.config import ModelConfig, RunConfig
from closelook.jobs.plan.models import load_tokenizer, tokenizer_key
from closelook.jobs.store import Ledger, Store, key_of
from closelook.jobs.store.artifacts import views_of

Limits = Mapping[str, int | None]  # samples by task
Facts = Mapping[str, Any]
METHODS = ("attnlrp", "gradient_x_input", "random")


def small_run(
    root: str, limits: Limits, models: Sequence[Facts], methods: Sequence[str | Facts] = METHODS, **settings: Any
) -> RunConfig:
    """The config of a run. `limits` are its tasks with the number of samples of each; None means all.

    `settings` are further keys of the config.
    """
    tasks = {task: {"source": "demo", "limit": limit} for task, limit in limits.items()}
    made = {"name": "bench", "root": root, "device": "cpu", "tasks": tasks, "models": models, "methods": methods}
    return RunConfig.model_validate({**made, **settings})


def write_views(
    store: Store, model: ModelConfig, task: str, rows: int, lengths: tuple[int, int], shard_rows: int
) -> None:
    """Writes `rows` samples of random tokens for the tokenizer of a model; `lengths` are the fewest and most tokens."""
    views, drawn = views_of(tokenizer_key(load_tokenizer(model)), task), _rows(task, lengths)
    for start in range(0, rows, shard_rows):
        part = [next(drawn) for _ in range(min(shard_rows, rows - start))]
        store.write_shard(f"{views.folder}/{start:09d}.parquet", pa.Table.from_pylist(part, schema=VIEW), VIEW)
    store.write_manifest(views.name, {"rows": rows})


def enter_views(store: Store, model: ModelConfig, task: str, rows: int, tokens: int) -> None:
    """Writes one shard of `rows` samples of `tokens` random tokens, and commits it to the ledger as `prepare` does."""
    views = replace(views_of(tokenizer_key(load_tokenizer(model)), task), key=key_of(task=task))
    drawn, path = _rows(task, (tokens, tokens)), f"{views.folder}/{views.shard('00000')}"
    table = pa.Table.from_pylist([next(drawn) for _ in range(rows)], schema=VIEW)
    record = {"task": task, "tokenizer": views.tokenizer, "rows": rows, "rejects": {}, "shards": [views.shard("00000")]}
    Ledger(store).commit(views, record, files={path: store.write_shard(path, table, VIEW)})


def _rows(task: str, lengths: tuple[int, int]) -> Iterator[dict[str, Any]]:
    """Endless rows of the table VIEW, with random tokens; the same for the same arguments."""
    draw, index = random.Random(0), 0
    while True:
        length = draw.randint(*lengths)
        ids = [draw.randrange(5, 60) for _ in range(length)]
        marks = dict.fromkeys(("evidence_mask", "special_mask"), [False] * length)
        predicted = {"position": length - 1, "target_id": 7, "foil_id": 8}
        yield {"sample_id": f"{task}{index:013d}", "input_ids": ids, "length": length, **predicted, **marks}
        index += 1


def write_columns(store: Store, path: str, columns: Mapping[str, Any], schema: pa.Schema) -> None:
    """Writes a shard with these columns; all other columns of the schema are null or zero."""
    rows = len(columns["sample_id"])
    empty = {field.name: pa.nulls(rows, field.type) if field.nullable else np.zeros(rows) for field in schema}
    store.write_shard(path, pa.table(empty | dict(columns)), schema)
