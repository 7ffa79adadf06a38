"""Finer relevance (of heads, layers, neurons, labels) that a run stores for some samples, a product each.

To store another relevance of `FINER`, a run needs a record here, a key of the config with its name, and a function that
makes its rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from closelook.evaluation.schema import HEADS, LABELS, LAYERS, NEURONS
from closelook.lrp_core.records.explained import TARGET
from closelook.lrp_core.records.finer import FINER
from closelook.lrp_core.records.types import Request

if TYPE_CHECKING:
    from closelook.jobs.plan.models import ResolvedModel
    from closelook.lrp_core.methods.record import Method


@dataclass(frozen=True)
class Kept:
    """A product that stores a finer relevance, for methods whose record says that they give it."""

    name: str  # of the product, of the config key, and in `FINER`
    schema: pa.Schema
    columns: str  # "module:function" that makes tables of a batch (see `jobs/products/relevance_tables.py`)
    beside: tuple[str, ...] = ()  # further relevance of `FINER` that is computed with it

    def is_of(self, method: Method, output: str) -> bool:
        """True if the method gives this relevance for models with this `output` (token, label or score)."""
        return self.name in method.gives

    def requests(self, method: Method, resolved: ResolvedModel, variants: Sequence[Request]) -> tuple[Request, ...]:
        """The requests of a method's cell: the `variants`, which have one embedding.

        Empty if the method or the model lacks this relevance.
        """
        if not self.is_of(method, resolved.output):
            return ()
        return tuple(variants) if set(FINER[self.name].needs) <= set(resolved.capabilities) else ()


class KeptLabels(Kept):
    """Relevance for every label of a classifier, for methods whose relevance depends on the label."""

    def is_of(self, method: Method, output: str) -> bool:
        """True for classifiers, and methods that explain the logit of a given label."""
        return output == "label" and TARGET.name in method.explanations

    def requests(self, method: Method, resolved: ResolvedModel, variants: Sequence[Request]) -> tuple[Request, ...]:
        """A request for each label of the classifier."""
        if not self.is_of(method, resolved.output):
            return ()
        labels = range(len(resolved.labels))
        return tuple(Request(method.name, TARGET.name, variants[0].embedding, label=label) for label in labels)


_RECORDS = (
    Kept("heads", HEADS, "closelook.jobs.products.relevance_tables:heads_columns"),
    Kept("layers", LAYERS, "closelook.jobs.products.relevance_tables:layers_columns"),
    KeptLabels("labels", LABELS, "closelook.jobs.products.relevance_tables:labels_columns"),
    Kept("neurons", NEURONS, "closelook.jobs.products.relevance_tables:neurons_columns", beside=("boundaries",)),
)
KEPT = {kept.name: kept for kept in _RECORDS}
