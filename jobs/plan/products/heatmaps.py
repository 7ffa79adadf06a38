"""Which tokens make neurons active where they are most active in a corpus, of those that rank first in samples.

Keyed by the contexts that are explained, and by the relevance that names the neurons.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from evaluation import schema as schemas
from jobs.plan.products.contexts import ContextsCell, contexts_of
from jobs.plan.products.record import Product, of_each_model, of_no_task
from jobs.store import Artifact, Ledger, key_of
from lrp_core.methods import METHODS

if TYPE_CHECKING:
    from jobs.config import RunConfig
    from jobs.plan.cells import ModelPlan

VERSION = 1  # raised when numbers change: stored ones of older versions are stale
FIRST = 5  # contexts of a neuron that are explained, those that the report shows


@dataclass(frozen=True)
class HeatmapsCell:
    """The first contexts of the neurons that rank first in these cells, of one model."""

    contexts: ContextsCell
    neurons: tuple[Artifact, ...]
    ranks: int  # of a sample's neurons
    method: str
    artifact: Artifact

    @property
    def model(self) -> ModelPlan:
        return self.contexts.model

    @property
    def of(self) -> tuple[Artifact, ...]:
        """What it is made of."""
        return (self.contexts.artifact, *self.neurons)


def wanted_heatmaps(config: RunConfig, model: ModelPlan, ledger: Ledger) -> Iterator[HeatmapsCell]:
    """One of a model that reads the corpus, of which neurons are kept and to which the method applies.

    Raises as `contexts_of`.
    """
    contexts = contexts_of(config, model, ledger)
    settings = config.neurons.corpus if config.neurons else None
    if contexts is None or settings is None or settings.explain is None:
        return
    method = settings.explain
    cells = tuple(planned.cell for planned in model.cells if planned.cell.product == "neurons")
    if not cells or METHODS[method].missing(model.resolved.capabilities):
        return
    key = key_of(
        version=VERSION,
        schema=schemas.titled(schemas.HEATMAPS),
        contexts=contexts.artifact.key,
        neurons=[cell.key for cell in cells],
        method=METHODS[method].key(),
        first=FIRST,
        ranks=settings.ranks,
    )
    own = contexts.artifact
    artifact = Artifact("heatmaps", own.model, own.task, own.dtype, method, key)
    yield HeatmapsCell(contexts, cells, settings.ranks, method, artifact)


HEATMAPS = Product(
    name="heatmaps",
    heading="heat maps",
    plural="sets of heat maps",
    stage="neurons",
    wanted=of_each_model(wanted_heatmaps),
    expected=of_no_task,
    outdated="heat maps of other contexts, or of neurons that other relevance names",
)
