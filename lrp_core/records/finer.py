"""Kinds of relevance besides that of tokens: of heads, layers, neurons and more. Imports no torch.

To add a kind, write its record and the fields of its results here and, if gradients give it, a reader in a module of
`lrp_core/places/`. The argument in `method(view, batch, NAME=True)`, its checks, and the fields of `Relevance` follow.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from closelook.lrp_core.lazy import imported_object
from closelook.lrp_core.records.capabilities import ATTENTION, NEURONS, ONE_STACK, STATES, Capability

if TYPE_CHECKING:
    from torch import Tensor


def axes(names: str) -> dict[str, str]:
    """Metadata of a field of `Relevance` that is a tensor with these axes (see the legend in `records/types.py`)."""
    return {"axes": names}


@dataclass(frozen=True)
class Finer:
    """A kind of relevance besides that of tokens, which a method computes when its caller asks for it by name."""

    name: str  # of the argument that asks for it, and of a field of `Relevance`
    title: str
    needs: tuple[Capability, ...]  # capabilities that the model must have
    reader: str | None = None  # "module:class" of the `Reader` that computes it in a backward pass
    of_sums: bool = False  # defined only for methods that promise a sum, under the epsilon rule of linear layers

    def reader_class(self) -> Any:
        """The `Reader` that computes it in a backward pass. Raises KeyError if there is none."""
        if self.reader is None:
            raise KeyError(f"no gradient gives {self.title}")
        return imported_object(self.reader)


_RECORDS = (
    Finer("heads", "relevance of attention heads", (ATTENTION,), "closelook.lrp_core.places.heads:HeadRelevance"),
    Finer("layers", "relevance by layer", (STATES, ONE_STACK)),
    Finer("neurons", "relevance of neurons", (NEURONS,), "closelook.lrp_core.places.neurons:NeuronRelevance"),
    Finer(
        "projections",
        "relevance of queries, keys, values and outputs of attention",
        (ATTENTION, ONE_STACK, NEURONS),
        "closelook.lrp_core.places.heads:ProjectionRelevance",
    ),
    Finer(
        "boundaries",
        "relevance at the boundaries of layers",
        (ATTENTION, ONE_STACK, NEURONS),
        "closelook.lrp_core.places.boundaries:BoundaryRelevance",
        of_sums=True,
    ),
)
FINER = {finer.name: finer for finer in _RECORDS}


@dataclass(frozen=True, kw_only=True)
class FinerFields:
    """The fields of `Relevance` that are None unless they are asked for."""

    heads: Tensor | None = field(default=None, metadata=axes("B L H P"))
    #: Relevance of the tokens by layer; 0 on padding.
    layers: Tensor | None = field(default=None, metadata=axes("B L T"))
    # Of each neuron: its relevance, summed over positions; the position where its absolute relevance is largest, int64;
    # its activation there. They are 0, -1 and 0 for neurons of experts that no token was sent to, and after the last
    # neuron of a layer that has fewer than others.
    neurons: Tensor | None = field(default=None, metadata=axes("B L F"))
    neuron_positions: Tensor | None = field(default=None, metadata=axes("B L F"))
    neuron_values: Tensor | None = field(default=None, metadata=axes("B L F"))
    # Of boundaries between blocks: the relevance below and above each block [B, L + 1]; the largest absolute relevance
    # of a token there [B, L + 1]; and the relevance that a block keeps: that of its biases and of the softmax of
    # attention [B, L, 2].
    boundaries: Tensor | None = field(default=None, metadata=axes("B N"))
    peaks: Tensor | None = field(default=None, metadata=axes("B N"))
    kept: Tensor | None = field(default=None, metadata=axes("B L R"))
    # Of the outputs of attention's linear layers, summed over positions: queries by head; keys and values by key-value
    # head; outputs. Queries and keys are None under rules that hold attention weights constant.
    queries: Tensor | None = field(default=None, metadata=axes("B L H K"))
    keys: Tensor | None = field(default=None, metadata=axes("B L G K"))
    values: Tensor | None = field(default=None, metadata=axes("B L G K"))
    outputs: Tensor | None = field(default=None, metadata=axes("B L D"))
