"""The paper's matrix without its computation: every cell, unit and file of the config `paper`, of a few samples.

Plans, reads, commits and closes are the run's own; only models are not loaded, and relevance is zeros.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import torch

from evaluation.schema import VIEW
from jobs.cluster.attempts import Attempts
from jobs.config import RunConfig
from jobs.plan.cells import make_plan
from jobs.plan.geometries import geometry_of
from jobs.plan.models import load_tokenizer, tokenizer_key
from jobs.stages.attribute import missing_work, work_of
from jobs.stages.attribute.compute import ExplainedBatch, Outcome, Timing
from jobs.stages.attribute.worker import UnitTask, Worker
from jobs.store import Ledger, Store
from jobs.store.artifacts import views_of
from lrp_core import POOLINGS, Relevance

LENGTH = 8  # tokens of a sample; requests do not depend on it
BATCH = 8  # samples; a unit is whole batches
HEADS = 4


def matrix_config(root: str, shard_rows: int, models: int | None = None) -> RunConfig:
    """The config `paper`, or its last `models`, with random weights and the demo's tokenizers."""
    from evaluation.benchmark.demo import model_dir

    config = RunConfig.load("paper", root)
    known = []
    for model in config.models:
        geometry = geometry_of(model.id)
        assert geometry is not None, f"the config paper has a model of unknown shape, {model.id}"
        own = {"id": f"random/{geometry.name}", "tokenizer": (str(model_dir(geometry.family)),), "token_budget": None}
        known.append(model.model_copy(update=own))
    heads = dict.fromkeys(config.heads or {})  # of every sample: doubling samples then doubles all there is
    changes: dict[str, Any] = {
        "models": tuple(known[-models:] if models else known),
        "shard_rows": shard_rows,
        "heads": heads,
    }
    changes["token_budget"] = BATCH * LENGTH
    return config.model_copy(update=changes)


def prepare(config: RunConfig, store: Store, rows: int) -> None:
    """Views of `rows` samples for every task and tokenizer, in shards as `prepare` writes them."""
    for key in dict.fromkeys(tokenizer_key(load_tokenizer(model)) for model in config.models):
        for task in config.tasks:
            views = views_of(key, task)
            for start in range(0, rows, config.shard_rows):
                part = [_row(task, i) for i in range(start, min(rows, start + config.shard_rows))]
                table = pa.Table.from_pylist(part, schema=VIEW)
                store.write_shard(f"{views.folder}/{start:09d}.parquet", table, VIEW)
            store.write_manifest(views.name, {"rows": rows})


def _row(task: str, index: int) -> dict[str, Any]:
    draw, marks = random.Random(index), [False] * LENGTH
    ids = [draw.randrange(5, 60) for _ in range(LENGTH)]
    lists = {"input_ids": ids, "evidence_mask": marks, "special_mask": marks, "scope_mask": None}
    return {
        "sample_id": f"{task}{index:09d}",
        "position": LENGTH - 1,
        "target_id": 7,
        "foil_id": 8,
        "length": LENGTH,
    } | lists


def attribute(config: RunConfig, store: Store) -> tuple[int, int]:
    """The stage `attribute` in this process, with computation left out: how many units and cells it had to do.

    Raises RuntimeError when a cell is not complete afterwards.
    """
    plan, ledger = make_plan(config, store), Ledger(store)
    models = missing_work(config, ledger, plan)
    for model in models:
        work = work_of(config, ledger, model)
        worker = Idle(*work.arguments)
        for block in work.blocks:
            for report in worker(block()).to_pylist():
                if report["error"]:
                    raise RuntimeError(report["error"])
                work.on_report(report)
        for failure in work.on_end():
            raise RuntimeError(failure)
        for planned, _ in model.cells:
            if not ledger.is_done(planned.cell):
                raise RuntimeError(f"{planned.cell} is not complete")
    return sum(len(model.units) for model in models), sum(len(model.cells) for model in models)


class Idle(Worker):
    """A worker that does everything but explain."""

    def _open(self, dtype: str) -> Any:
        return SimpleNamespace(n_segments=2, device=torch.device("cpu"))

    def _explain(
        self, task: UnitTask, view: Any, rows: Sequence[Mapping[str, Any]], attempts: Attempts
    ) -> dict[str, Outcome]:
        number = torch.zeros(len(rows))
        tokens, heads = torch.zeros(len(rows), LENGTH), torch.zeros(len(rows), 1, HEADS, len(POOLINGS))
        nothing = Relevance(tokens, number, number, number, heads=heads)
        relevance = {request: replace(nothing) for _, requests in task.cells for request in requests}
        timed = Timing("none", "method", 0.0, LENGTH, len(rows))
        outcome = Outcome(explained=[ExplainedBatch(tuple(rows), relevance, (timed,))])
        return {cell.method: outcome for cell, _ in task.cells}
