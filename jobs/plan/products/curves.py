"""Faithfulness curves, keyed by the relevance that orders the tokens and by which of them go, how and in what steps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from evaluation import schema as schemas
from evaluation.scoring.flips import AREAS, Flips
from jobs.plan.cells import ModelPlan, Plan, PlannedCell
from jobs.plan.models import load_tokenizer
from jobs.plan.products.record import Product, Wanted
from jobs.store import Artifact, Ledger, key_of
from lrp_core.interventions.tokens import MASK

if TYPE_CHECKING:
    from jobs.config import ModelConfig, PerturbConfig, RunConfig

VERSION = 2  # raised when curves change: stored ones of older versions are stale


@dataclass(frozen=True)
class PerturbedCell:
    """The curves of one relevance cell."""

    model: ModelPlan
    relevance: Artifact
    planned: PlannedCell  # of the curves
    flips: tuple[Flips, ...]

    @property
    def ways(self) -> tuple[str, ...]:
        """The ways in which tokens go one after the other."""
        return tuple(one.way for one in self.flips if one.measure == AREAS)

    @property
    def artifact(self) -> Artifact:
        return self.planned.cell


def wanted_cells(config: RunConfig, settings: PerturbConfig, model: ModelPlan) -> Iterator[PerturbedCell]:
    """One for every planned relevance cell that `settings` name, in the first precision of its task."""
    kind, output = model.resolved.kind, model.resolved.output
    flips = tuple(model.resolved.filled(one) for one in settings.flips_of(kind, output, config.seed))
    if any(one.way == MASK for one in flips):
        mask_id = load_tokenizer(model.resolved.config).mask_token_id
        flips = tuple(replace(one, mask_id=mask_id) if one.way == MASK else one for one in flips)
    for planned in model.cells if flips else ():
        cell, inputs = planned.cell, model.inputs[planned.cell.task]
        variants = tuple(request for request in planned.requests if settings.asks(request))
        first = cell.dtype == model.resolved.config.dtypes_for(cell.task)[0]
        if (
            cell.product != "relevance"
            or not first
            or not settings.takes(task=cell.task, method=cell.method)
            or not variants
        ):
            continue
        rows = subset(config, settings, model, cell.task)
        key = key_of(
            version=VERSION,
            schema=schemas.titled(schemas.CURVES),
            relevance=cell.key,
            variants=[[request.explanation, request.embedding] for request in variants],
            flips=[one.key() for one in flips],
            subset=rows.tolist(),
            masks=inputs.masks_digest,
            gold=inputs.gold_digest,
            labels=model.resolved.labels,
        )
        artifact = Artifact("curves", cell.model, cell.task, cell.dtype, cell.method, key)
        yield PerturbedCell(model, cell, PlannedCell(artifact, variants, len(rows), planned.chosen), flips)


def subset(config: RunConfig, settings: PerturbConfig, model: ModelPlan, task: str) -> np.ndarray:
    """The samples, the same for every method: indices into the views."""
    return model.inputs[task].subset(settings.samples, config.seed)


def _wanted(config: RunConfig, plan: Plan, ledger: Ledger) -> Iterator[Wanted]:
    if config.perturb is None:
        return
    for model in plan.models:
        for one in wanted_cells(config, config.perturb, model):
            yield Wanted(one.artifact, one.planned.rows, (one.relevance,))


def _expected(config: RunConfig, model: ModelConfig, task: str, methods: list[str]) -> dict[str, int]:
    settings = config.perturb
    if settings is None or not settings.takes(task=task):
        return {}
    return {model.dtypes_for(task)[0]: sum(settings.takes(method=name) for name in methods)}


CURVES = Product(
    name="curves",
    heading="faithfulness",
    plural="sets of faithfulness curves",
    stage="perturb",
    wanted=_wanted,
    expected=_expected,
    outdated="faithfulness curves of other relevance or settings",
)
