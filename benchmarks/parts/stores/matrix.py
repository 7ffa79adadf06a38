"""A run of the config `paper` with all its cells, units and files, but with few samples and without computation.

Planning, reading, committing and closing are done by the code of real runs. Models are not loaded, and all relevance is
zero.
"""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import torch

from benchmarks.parts.runs import write_views
from closelook.evaluation.benchmark.demo import model_dir
from closelook.jobs.config import RunConfig
from closelook.jobs.geometries import geometry_of
from closelook.jobs.plan.cells import make_plan
from closelook.jobs.plan.node import Part, Run
from closelook.jobs.products.explaining import ExplainedBatch, Timing
from closelook.jobs.products.record import NodeFailed
from closelook.jobs.runner.rows import Outcome
from closelook.jobs.runner.worker import Worker
from closelook.jobs.stages.compute import works_of
from closelook.jobs.store import Ledger, Store
from closelook.lrp_core import POOLINGS, Relevance

LENGTH = 8  # tokens of a sample; the number of requests does not depend on it
BATCH = 8  # samples of a batch; a unit consists of whole batches
HEADS = 4


def matrix_config(root: str, shard_rows: int, models: int | None = None) -> RunConfig:
    """The config `paper`, or its last `models`, with random weights and the demo's tokenizers."""
    config = RunConfig.load("paper", root)
    drawn = []
    for model in config.models[-models if models else 0 :]:
        geometry = geometry_of(model.id)
        assert geometry is not None, f"the config paper has a model of unknown shape, {model.id}"
        tokenizer = (str(model_dir(geometry.family)),)
        changes: dict[str, Any] = {"id": f"random/{geometry.name}", "tokenizer": tokenizer, "token_budget": None}
        drawn.append(model.model_copy(update=changes))
    heads = dict.fromkeys(config.heads or {})  # of every sample: twice the samples then mean twice the work
    changes = {"models": tuple(drawn), "shard_rows": shard_rows, "heads": heads, "token_budget": BATCH * LENGTH}
    return config.model_copy(update=changes)


def prepare(config: RunConfig, store: Store, rows: int) -> None:
    """Writes views of `rows` samples for every task and tokenizer, in shards as the stage `prepare` does."""
    for model in {model.tokenizer: model for model in config.models}.values():
        for task in config.tasks:
            write_views(store, model, task, rows, (LENGTH, LENGTH), config.shard_rows)


def attribute(config: RunConfig, store: Store) -> tuple[int, int]:
    """Runs the stage `attribute` in this process without computation, and returns how many units and cells it did.

    Raises RuntimeError if a cell is not complete afterwards.
    """
    ledger = Ledger(store)
    models = works_of(Run(config, make_plan(config, store), ledger), "attribute")
    for model in models:
        work = model.work()
        worker = Idle(*work.arguments)
        for table in work.tables():
            for report in worker(table).to_pylist():
                if report["error"]:
                    raise RuntimeError(report["error"])
                work.on_report(report)
        for failure in work.on_end():
            raise RuntimeError(failure)
    cells = [node.artifact for model in models for group in model.groups for node in group.nodes]
    for cell in cells:
        if not ledger.is_done(cell):
            raise RuntimeError(f"{cell} is not complete")
    return sum(len(group.missing) for model in models for group in model.groups), len(cells)


class Idle(Worker):
    """A worker that does everything except the explanations, which are zeros."""

    def _open(self, dtype: str) -> Any:
        return SimpleNamespace(n_segments=2, device=torch.device("cpu"))

    def _compute(self, product: Any, opened: Any, task: Any, rows: Any) -> dict[Part, Outcome | NodeFailed]:
        """Relevance of zeros for every request, in place of explanations."""
        number = torch.zeros(len(rows))
        tokens, heads = torch.zeros(len(rows), LENGTH), torch.zeros(len(rows), 1, HEADS, len(POOLINGS))
        nothing = Relevance(tokens, number, number, number, heads=heads)
        relevance = {request: replace(nothing) for part in task.parts for request in part.node.requests}
        timed = Timing("none", "method", 0.0, LENGTH, len(rows))
        batch = ExplainedBatch(tuple(rows), relevance, (timed,))
        outcome = Outcome([dict.fromkeys(task.parts, batch)])
        return dict.fromkeys(task.parts, outcome)
