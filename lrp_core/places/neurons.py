"""Relevance of neurons, reduced over positions while the gradient passes.

Neurons are what enters the down projection of a feed-forward layer: the outputs of its last non-linearity or, in gated
layers, the products of gate and signal (AttnLRP 3.4 and 4.3).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from closelook.lrp_core.device.precision import wide
from closelook.lrp_core.operations.watching import watched
from closelook.lrp_core.places.reading import Measure, Reader
from closelook.lrp_core.readers.feed_forward import Passing, at_neurons
from closelook.lrp_core.rules.records import Composite

_PIECES = 16  # the positions of a sample are read in so many pieces


@dataclass(frozen=True)
class _Reduced:
    """The relevance of the neurons of a part in a backward pass, by one measure; each field is [B, F]."""

    total: Tensor  # the sum over positions
    at: Tensor  # the position with the largest absolute relevance, int64; -1 if no token reached the neuron
    value: Tensor  # the neuron's activation at that position


class NeuronRelevance(Reader):
    """Relevance of the neurons of each layer."""

    @contextmanager
    def tapping(self) -> Iterator[None]:
        """Inside, the inputs of down projections are read."""
        with ExitStack() as undo:
            for layer, block in enumerate(self.view.blocks):
                undo.enter_context(at_neurons(block, partial(self._tap, layer=layer)))
            yield

    def _tap(self, x: Tensor, passing: Passing, *, layer: int) -> Tensor:
        """The same input x of a down projection; the neurons' relevance is read when its gradient arrives."""

        def read(gradient: Tensor, value: Tensor) -> None:
            gradient, value = (passing.spread(tensor, self.mask.shape) for tensor in (gradient, value))
            is_token = passing.there(self.mask)
            for name, measure in self.measures.items():
                self._read[name][layer, passing.part.first] = _reduced(gradient, value, measure, is_token)

        return watched(x, read)

    def fields(self, name: str, composite: Composite, conserves: bool) -> dict[str, Tensor | None]:
        """Fields `neurons`, `neuron_positions` and `neuron_values`, each [B, L, F].

        They are 0, -1 and 0 after the last neuron of a layer that has fewer neurons than others.
        """
        parts = self._read[name]
        some = next(iter(parts.values()))
        shape = len(some.total), self.view.n_layers, self.view.n_neurons
        total, at, value = some.total.new_zeros(shape), some.at.new_full(shape, -1), some.value.new_zeros(shape)
        for (layer, first), part in parts.items():
            columns = slice(first, first + part.total.shape[1])
            total[:, layer, columns] = part.total
            at[:, layer, columns] = part.at
            value[:, layer, columns] = part.value
        return {"neurons": total, "neuron_positions": at, "neuron_values": value}


def _reduced(gradient: Tensor, value: Tensor, measure: Measure, mask: Tensor) -> _Reduced:
    """Relevance of neurons from `gradient` and `value` [B, T, F], over the tokens of `mask` [B, T]."""
    padding = ~mask.to(value.device).bool()[..., None]  # [B, T, 1]
    size = -(-value.shape[1] // _PIECES)
    total = torch.zeros_like(wide(value[:, 0]))
    largest, best = torch.full_like(total, -1), torch.zeros_like(total)
    at = torch.full_like(total, -1, dtype=torch.int64)
    for start in range(0, value.shape[1], size):
        part = slice(start, start + size)
        relevance = measure(wide(gradient[:, part]), wide(value[:, part]))
        total += relevance.masked_fill(padding[:, part], 0).sum(1)
        peak, where = relevance.abs().masked_fill(padding[:, part], -1).max(1)  # [B, F]
        better = (peak > largest) | (peak.isnan() & ~largest.isnan())  # NaN counts as largest
        largest = torch.where(better, peak, largest)
        at = torch.where(better, where + start, at)
        activation = value[:, part].gather(1, where[:, None])[:, 0]
        best = torch.where(better, wide(activation), best)
    return _Reduced(total, at, best)
