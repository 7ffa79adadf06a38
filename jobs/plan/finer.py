"""Finer relevance (of heads, layers, neurons, labels) that a run stores for some samples, a product each.

To store another relevance of `FINER`, a run needs a record here, a key of the config with its name, and a function in
`COLUMNS` of `jobs/products/relevance_tables.py` that makes its rows.
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
    beside: tuple[str, ...] = ()  # further relevance of `FINER` that is computed with it

    def requests(self, method: Method, resolved: ResolvedModel, variants: Sequence[Request]) -> tuple[Request, ...]:
        """The `variants`, which have one embedding; none if the method or the model lacks this relevance."""
        if self.name not in method.gives:
            return ()
        return tuple(variants) if set(FINER[self.name].needs) <= set(resolved.capabilities) else ()


class KeptLabels(Kept):
    """Relevance for every label of a classifier, for methods that explain the logit of a given label."""

    def requests(self, method: Method, resolved: ResolvedModel, variants: Sequence[Request]) -> tuple[Request, ...]:
        """A request for each label of the classifier."""
        if resolved.output != "label" or TARGET.name not in method.explanations:
            return ()
        labels = range(len(resolved.labels))
        return tuple(Request(method.name, TARGET.name, variants[0].embedding, label=label) for label in labels)


_RECORDS = (
    Kept("heads", HEADS),
    Kept("layers", LAYERS),
    KeptLabels("labels", LABELS),
    Kept("neurons", NEURONS, beside=("boundaries",)),
)
KEPT = {kept.name: kept for kept in _RECORDS}
