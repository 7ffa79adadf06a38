"""Pruning curves, keyed by the head relevance that ranks the heads, or by the samples and the seed of random orders."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow.compute as pc

from evaluation import schema as schemas
from evaluation.scoring.head_orders import RANDOM
from jobs.plan.cells import ModelPlan, Plan
from jobs.plan.products.record import Product, Wanted
from jobs.plan.products.relevance import heads_of
from jobs.store import Artifact, Ledger, key_of
from lrp_core.explained import CONTRASTIVE

if TYPE_CHECKING:
    from jobs.config import ModelConfig, PruneConfig, RunConfig

VERSION = 2  # raised when curves change: stored ones of older versions are stale


@dataclass(frozen=True)
class CurveSet:
    """All curves of one method on one task: what is keyed, completed and replaced together."""

    model: ModelPlan
    heads: Artifact  # what the heads are ranked by; random orders take only their number from it
    artifact: Artifact

    @property
    def method(self) -> str:
        return self.artifact.method


def wanted_curves(config: RunConfig, settings: PruneConfig, model: ModelPlan) -> Iterator[CurveSet]:
    """A set for every method with planned contrastive heads, and one of random orders beside them."""
    if not settings.takes(model=model.name):
        return
    cells_of: dict[tuple[str, str], Artifact] = {}
    for planned in model.cells:
        cell = planned.cell
        contrastive = any(request.explanation == CONTRASTIVE.name for request in planned.requests)
        if cell.product != "heads" or not contrastive or not settings.takes(task=cell.task):
            continue
        cells_of.setdefault((cell.task, cell.dtype), cell)
        gold = [model.inputs[cell.task].gold_digest, model.resolved.labels]
        if settings.takes(method=cell.method):
            key = key_of(
                version=VERSION,
                schema=schemas.titled(schemas.PRUNING),
                heads=cell.key,
                gold=gold,
                poolings=settings.poolings,
                orders=settings.orders,
                step=settings.step,
            )
            yield CurveSet(model, cell, _curves(cell, cell.method, key))
    for (task, dtype), cell in cells_of.items() if settings.random_runs else ():
        key = key_of(
            version=VERSION,
            schema=schemas.titled(schemas.PRUNING),
            inputs=model.inputs[task].digest,
            gold=[model.inputs[task].gold_digest, model.resolved.labels],
            subset=subset(config, model, task).tolist(),
            model=model.resolved.identity,
            attention=model.resolved.config.attn,
            dtype=dtype,
            seed=config.seed,
            runs=settings.random_runs,
            step=settings.step,
        )
        yield CurveSet(model, cell, _curves(cell, RANDOM, key))


def subset(config: RunConfig, model: ModelPlan, task: str) -> np.ndarray:
    """The pruning subset, the same for every method: indices into the views of its samples with a foil or a label."""
    inputs = model.inputs[task]
    rows = inputs.subset((config.heads or {}).get(task), config.seed)
    known = pc.or_(inputs.table["foil_id"].is_valid(), inputs.table["label"].is_valid())
    return rows[known.to_numpy()[rows]]


def _curves(heads: Artifact, method: str, key: str) -> Artifact:
    return Artifact("pruning", heads.model, heads.task, heads.dtype, method, key)


def _wanted(config: RunConfig, plan: Plan, ledger: Ledger) -> Iterator[Wanted]:
    if config.prune is None:
        return
    for model in plan.models:
        for curves in wanted_curves(config, config.prune, model):
            yield Wanted(curves.artifact, len(subset(config, model, curves.heads.task)))


def _expected(config: RunConfig, model: ModelConfig, task: str, methods: list[str]) -> dict[str, int]:
    """One of each cell of heads, and one of random orders."""
    settings = config.prune
    if settings is None or not settings.takes(task=task, model=model.name):
        return {}
    counts = heads_of(config, model, task, methods).items()
    return {dtype: heads + (settings.random_runs > 0) for dtype, heads in counts if heads}


PRUNING = Product(
    name="pruning",
    heading="curves",
    plural="sets of curves",
    stage="prune",
    wanted=_wanted,
    expected=_expected,
    outdated="curves of other heads or settings",
)
