"""What neurons answer to in a corpus, keyed by the model, the texts and how they are cut."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from evaluation import schema as schemas
from jobs.plan.corpus import PRODUCT, check_models, reads_texts, surveyed
from jobs.plan.products.record import Product, Wanted, of_no_task
from jobs.store import Artifact, Ledger, key_of

if TYPE_CHECKING:
    from jobs.config import RunConfig
    from jobs.plan.cells import ModelPlan, Plan

VERSION = 2  # raised when numbers change: stored ones of older versions are stale


@dataclass(frozen=True)
class ContextsCell:
    """The contexts of one model."""

    model: ModelPlan
    artifact: Artifact


def wanted_contexts(config: RunConfig, plan: Plan, ledger: Ledger) -> Iterator[ContextsCell]:
    """One of every model that reads the corpus. Raises as `contexts_of`."""
    for model in plan.models:
        cell = contexts_of(config, model, ledger)
        if cell is not None:
            yield cell


def contexts_of(config: RunConfig, model: ModelPlan, ledger: Ledger) -> ContextsCell | None:
    """The cell of a model, in its own precision; None of one that reads no corpus. Raises as `surveyed`."""
    settings, resolved = config.neurons.corpus if config.neurons else None, model.resolved
    if settings is None:
        return None
    check_models(config, resolved)
    if not settings.takes(model=model.name) or not reads_texts(resolved):
        return None
    corpus = surveyed(config, ledger)
    key = key_of(
        version=VERSION,
        schema=[schemas.titled(schemas.CONTEXTS), schemas.titled(schemas.ACTIVATIONS)],
        model=resolved.identity,
        attention=resolved.config.attn,
        dtype=resolved.config.dtype,
        tokenizer=model.tokenizer,
        corpus=corpus.survey.digest,
        unit=corpus.characters,
        tokens=settings.tokens,
        top=settings.top,
    )
    return ContextsCell(model, Artifact(PRODUCT, model.name, settings.name, resolved.config.dtype, key=key))


def _wanted(config: RunConfig, plan: Plan, ledger: Ledger) -> Iterator[Wanted]:
    for cell in wanted_contexts(config, plan, ledger):
        yield Wanted(cell.artifact, surveyed(config, ledger).survey.texts)


CONTEXTS = Product(
    name=PRODUCT,
    heading="contexts",
    plural="corpora read",
    stage="neurons",
    wanted=_wanted,
    expected=of_no_task,
    outdated="contexts of another corpus or other settings",
)
