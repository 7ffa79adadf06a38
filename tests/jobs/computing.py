"""Computations of products without a store, a worker or a ledger."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from closelook.evaluation.schema import CURVES
from closelook.jobs.cluster.attempts import Untroubled
from closelook.jobs.methods import METHODS
from closelook.jobs.plan.node import Cell, Part
from closelook.jobs.plan.units import WorkerOptions
from closelook.jobs.products.drawing import Drawing
from closelook.jobs.products.explaining import ExplainedBatch, Explainer
from closelook.jobs.products.record import NodeFailed, Opened, Reject
from closelook.jobs.products.relevance import RELEVANCE
from closelook.jobs.runner.rows import Outcome, compute_parts
from closelook.jobs.store import Artifact


def opened_for(view: Any, attempts: Any = None, token_budget: int = 10_000, **options: Any) -> Opened:
    """A worker's view of an opened model."""
    settings: dict[str, Any] = {
        "seed": 0, "max_attempts": 2, "checkpoint": False, "byte_budget": None, "methods": METHODS, "run": "run"
    }  # fmt: skip
    return Opened(None, WorkerOptions(**settings | options), attempts or Untroubled(), None, view, token_budget)


def part_of(method: str = "", requests: tuple[Any, ...] = (), product: str = "relevance") -> Part:
    """A part of a cell."""
    return Part(Cell(artifact=Artifact(product, "m", "t", "float32", method), requests=requests), "unit")


@dataclass
class Explained:
    """The outcome of batches of relevance."""

    explained: list[ExplainedBatch]
    rejects: list[Reject]
    splits: int


def explained(explainer: Explainer, rows: Sequence[Mapping[str, Any]]) -> Explained:
    """Rows through the explainer in one batch, whatever goes wrong with one of them."""
    part = part_of("methods", explainer.requests, explainer.product)
    product = replace(RELEVANCE, compute=lambda opened, parts, rows: dict.fromkeys(parts, explainer.batch(rows)))
    outcome = compute_parts(product, opened_for(explainer.view), [part], rows)[part]
    if isinstance(outcome, NodeFailed):
        raise outcome
    return Explained(outcome.of(part), outcome.rejects, outcome.splits)


@dataclass
class Drawn:
    """The curves of a unit."""

    rows: dict[str, list[dict[str, Any]]]
    rejects: dict[str, list[Reject]]
    splits: int

    def table(self, method: str) -> pa.Table:
        return pa.Table.from_pylist(self.rows[method], schema=CURVES)


def drawn(drawing: Drawing, rows: Sequence[Mapping[str, Any]], attempts: Any = None) -> Drawn:
    """The curves of rows in one batch, whatever goes wrong with one of them."""
    part = part_of("curves")
    product = replace(RELEVANCE, compute=lambda opened, parts, rows: dict.fromkeys(parts, drawing.run(rows)))
    outcome = compute_parts(product, opened_for(drawing.view, attempts), [part], rows)[part]
    assert isinstance(outcome, Outcome)
    methods = list(drawing.claims)
    values = outcome.of(part)
    return Drawn(
        {name: [row for value in values for row in value.rows[name]] for name in methods},
        {name: [*outcome.rejects, *(r for value in values for r in value.rejects[name].values())] for name in methods},
        outcome.splits + sum(value.splits for value in values),
    )
