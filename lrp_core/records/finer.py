"""Kinds of relevance besides that of tokens: of heads, layers, neurons and more. Imports no torch.

Whoever adds one writes its record and the fields of its results here and, where gradients give it, a reader in a module
of `lrp_core/rules/`. `method(view, batch, NAME=True)`, checks, what methods give and `Relevance` follow.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from lrp_core.lazy import named
from lrp_core.records.capabilities import ATTENTION, NEURONS, ONE_STACK, STATES, Capability

if TYPE_CHECKING:
    from torch import Tensor


def axes(names: str) -> dict[str, str]:
    """Metadata of a field of `Relevance` that is a tensor with these axes (see the legend in `records/types.py`)."""
    return {"axes": names}


@dataclass(frozen=True)
class Finer:
    """A relevance that is computed where it is asked for by name."""

    name: str  # also that of the field of `Relevance` which messages are about
    title: str
    needs: tuple[Capability, ...]  # of a model
    reader: str | None = None  # "module:class" of the `Reader` that takes it from a backward pass
    of_sums: bool = False  # only where a method promises a sum, and linear layers have the epsilon rule

    def reader_class(self) -> Any:
        """The class of its reader. Raises KeyError where no gradient gives it."""
        if self.reader is None:
            raise KeyError(f"no gradient gives {self.title}")
        return named(self.reader)


_RECORDS = (
    Finer("heads", "relevance of attention heads", (ATTENTION,), "lrp_core.rules.heads:HeadRelevance"),
    Finer("layers", "relevance by layer", (STATES, ONE_STACK)),
    Finer("neurons", "relevance of neurons", (NEURONS,), "lrp_core.rules.neurons:NeuronRelevance"),
    Finer(
        "projections",
        "relevance of queries, keys, values and outputs of attention",
        (ATTENTION, ONE_STACK, NEURONS),
        "lrp_core.rules.projections:ProjectionRelevance",
    ),
    Finer(
        "boundaries",
        "relevance at the boundaries of layers",
        (ATTENTION, ONE_STACK, NEURONS),
        "lrp_core.rules.boundaries:BoundaryRelevance",
        of_sums=True,
    ),
)
FINER = {finer.name: finer for finer in _RECORDS}


@dataclass(frozen=True, kw_only=True)
class FinerFields:
    """The fields of `Relevance` that are None unless they are asked for."""

    heads: Tensor | None = field(default=None, metadata=axes("B L H P"))
    #: What each layer says of the tokens; 0 on padding.
    layers: Tensor | None = field(default=None, metadata=axes("B L T"))
    # Of neurons: the sum over positions; the position where the absolute relevance is largest, int64; the activation
    # there. Where a layer has fewer, and where no token was sent to an expert, that is 0, -1 and 0.
    neurons: Tensor | None = field(default=None, metadata=axes("B L F"))
    neuron_positions: Tensor | None = field(default=None, metadata=axes("B L F"))
    neuron_values: Tensor | None = field(default=None, metadata=axes("B L F"))
    # Of boundaries: the relevance below and above each block [B, L + 1], the largest of a token there, by magnitude
    # [B, L + 1], and what a block keeps: biases and the softmax of attention [B, L, 2], and with experts their router
    # [B, L, 3].
    boundaries: Tensor | None = field(default=None, metadata=axes("B N"))
    peaks: Tensor | None = field(default=None, metadata=axes("B N"))
    kept: Tensor | None = field(default=None, metadata=axes("B L R"))
    # Of projections, sums over positions of what the layers of attention put out: queries; keys and values by key-value
    # head; outputs. Queries and keys are None under rules that hold attention weights constant.
    queries: Tensor | None = field(default=None, metadata=axes("B L H K"))
    keys: Tensor | None = field(default=None, metadata=axes("B L G K"))
    values: Tensor | None = field(default=None, metadata=axes("B L G K"))
    outputs: Tensor | None = field(default=None, metadata=axes("B L D"))
