"""What the neurons that a run keeps write to the vocabulary, keyed by the model and the relevance that names them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from evaluation import schema as schemas
from jobs.plan.products.knockouts import wanted_cells
from jobs.plan.products.record import Product, of_each_model, of_no_task
from jobs.store import Artifact, Ledger, key_of

if TYPE_CHECKING:
    from jobs.config import RunConfig
    from jobs.plan.cells import ModelPlan

VERSION = 2  # raised when numbers change: stored ones of older versions are stale


@dataclass(frozen=True)
class WritingsCell:
    """The words of all neurons of these cells, of one model."""

    model: ModelPlan
    of: tuple[Artifact, ...]  # the relevance that names the neurons
    artifact: Artifact


def wanted_writings(config: RunConfig, model: ModelPlan, ledger: Ledger) -> Iterator[WritingsCell]:
    """One of every model whose neurons are knocked out, where it is open anyway, and which reads words."""
    knocked = list(wanted_cells(config, model, ledger))
    if not knocked or model.resolved.kind.images:
        return
    cells = tuple(planned.cell for planned in model.cells if planned.cell.product == "neurons")
    key = key_of(
        version=VERSION,
        schema=schemas.titled(schemas.WRITINGS),
        model=model.resolved.identity,
        neurons=[cell.key for cell in cells],
    )
    yield WritingsCell(model, cells, Artifact("writings", model.name, dtype=knocked[0].artifact.dtype, key=key))


WRITINGS = Product(
    name="writings",
    heading="writings",
    plural="sets of words",
    stage="neurons",
    wanted=of_each_model(wanted_writings),
    expected=of_no_task,
    outdated="words of neurons that other relevance names",
)
