"""Knock-outs of neurons, keyed by the relevance that ranks them, or by the samples and the seed of other rankings."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from evaluation import schema as schemas
from evaluation.scoring.head_orders import ACTIVATION, RANDOM
from jobs.plan.products.contexts import contexts_of
from jobs.plan.products.record import Product, Wanted
from jobs.plan.products.relevance import neurons_of
from jobs.store import Artifact, Ledger, key_of
from lrp_core.explained import versions
from lrp_core.types import UserError

if TYPE_CHECKING:
    import numpy as np

    from jobs.config import ModelConfig, RunConfig
    from jobs.config.neurons import KnockoutConfig
    from jobs.plan.cells import ModelPlan, Plan

VERSION = 1  # raised when numbers change: stored ones of older versions are stale
OTHERS = (RANDOM, ACTIVATION)  # rankings beside those of methods


@dataclass(frozen=True)
class RankedCell:
    """The knock-outs of one ranking on one task."""

    model: ModelPlan
    ranking: str
    neurons: Artifact | None  # what ranks them; None: nothing that is stored
    means: Artifact | None  # contexts beside which the values stand that neurons get; None: they are zero
    explanation: str
    artifact: Artifact

    @property
    def of(self) -> tuple[Artifact, ...]:
        """What it is made of."""
        return tuple(one for one in (self.neurons, self.means) if one is not None)


def wanted_cells(config: RunConfig, model: ModelPlan, ledger: Ledger) -> Iterator[RankedCell]:
    """One for every planned cell of neurons that the config names, and the other rankings beside each task's.

    Raises UserError where neurons get their means and the model reads no corpus, and as `contexts_of`.
    """
    settings = config.neurons.knockout if config.neurons else None
    if settings is None or not settings.takes(model=model.name):
        return
    cells_of: dict[str, tuple[Artifact, str]] = {}
    means: Artifact | None = None
    for planned in model.cells:
        cell = planned.cell
        if cell.product != "neurons" or not settings.takes(task=cell.task):
            continue
        known = [request.explanation for request in planned.requests]
        explanation = settings.explanation or known[0]
        if explanation not in known:
            continue
        means = means or _means(config, settings, model, ledger)
        cells_of.setdefault(cell.task, (cell, explanation))
        if settings.takes(method=cell.method):
            key = key_of(
                version=VERSION,
                schema=schemas.titled(schemas.KNOCKOUTS),
                neurons=cell.key,
                explanation=explanation,
                counts=settings.counts,
                **versions([explanation]),
                **_keyed(means),
            )
            yield RankedCell(model, cell.method, cell, means, explanation, _knockouts(cell, cell.method, key))
    for cell, explanation in cells_of.values():
        yield from _others(config, settings, model, cell, means, explanation)


def _means(config: RunConfig, settings: KnockoutConfig, model: ModelPlan, ledger: Ledger) -> Artifact | None:
    if settings.value == "zero":
        return None
    cell = contexts_of(config, model, ledger)
    if cell is None:
        key, why = "config key 'neurons.knockout.value'", "reads no corpus, so its neurons have no mean"
        raise UserError(f"{key}: model {model.name} {why}: leave it out of neurons.knockout.models")
    return cell.artifact


def _keyed(means: Artifact | None) -> dict[str, Any]:
    return {"means": means.key} if means else {}


def _others(
    config: RunConfig,
    settings: KnockoutConfig,
    model: ModelPlan,
    cell: Artifact,
    means: Artifact | None,
    explanation: str,
) -> Iterator[RankedCell]:
    inputs = model.inputs[cell.task]
    for ranking in OTHERS:
        key = key_of(
            version=VERSION,
            schema=schemas.titled(schemas.KNOCKOUTS),
            ranking=ranking,
            model=model.resolved.identity,
            attention=model.resolved.config.attn,
            dtype=cell.dtype,
            inputs=inputs.digest,
            subset=subset(config, model, cell.task).tolist(),
            explanation=explanation,
            counts=settings.counts,
            seed=config.seed,
            **versions([explanation]),
            **_keyed(means),
        )
        yield RankedCell(model, ranking, None, means, explanation, _knockouts(cell, ranking, key))


def subset(config: RunConfig, model: ModelPlan, task: str) -> np.ndarray:
    """The samples, the same for every ranking: indices into the views."""
    return model.inputs[task].subset(config.finer("neurons")[task], config.seed)


def _knockouts(cell: Artifact, ranking: str, key: str) -> Artifact:
    # a method of the run may have the name of a ranking that needs none
    return Artifact("knockouts", cell.model, cell.task, cell.dtype, ranking, key)


def _wanted(config: RunConfig, plan: Plan, ledger: Ledger) -> Iterator[Wanted]:
    for model in plan.models:
        for one in wanted_cells(config, model, ledger):
            yield Wanted(one.artifact, len(subset(config, model, one.artifact.task)), one.of)


def _expected(config: RunConfig, model: ModelConfig, task: str, methods: list[str]) -> dict[str, int]:
    settings = config.neurons.knockout if config.neurons else None
    if settings is None or not settings.takes(task=task, model=model.name):
        return {}
    named = [name for name in methods if settings.takes(method=name)]
    counts = neurons_of(config, model, task, methods)
    return {
        dtype: neurons_of(config, model, task, named)[dtype] + len(OTHERS) for dtype, count in counts.items() if count
    }


KNOCKOUTS = Product(
    name="knockouts",
    heading="knock-outs",
    plural="sets of knock-outs",
    stage="neurons",
    wanted=_wanted,
    expected=_expected,
    outdated="knock-outs of other neurons or settings",
)
