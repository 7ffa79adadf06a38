"""Activations of neurons, reduced while a forward pass goes by: nothing of length T times F is kept."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from lrp_core.device.transfer import to_host
from lrp_core.readers.feed_forward import Passing, at_neurons
from lrp_core.views.view import ModelView


@dataclass
class Peaks:
    """The largest activation of every neuron in each row of the last forward, and where.

    Minus infinity of neurons that a layer does not have where another has more, and of an expert's where no token was
    sent to it.
    """

    view: ModelView
    parts: dict[tuple[int, int], tuple[Tensor, Tensor]] = field(default_factory=dict)
    # by layer and the number of a part's first neuron: value and position [B, F]

    def of(self, layer: int) -> tuple[Tensor, Tensor]:
        """Value and position [B, F] of a layer's own neurons."""
        parts = [self.parts[layer, part.first] for part in self.view.blocks[layer].feed_forwards]
        values, positions = (torch.cat([pair[i] for pair in parts], 1) for i in range(2))
        return values, positions

    @property
    def values(self) -> Tensor:
        """[B, L, F], in float32 at least."""
        return self._stacked(0, -torch.inf)

    @property
    def positions(self) -> Tensor:
        """[B, L, F] int64; of equal activations the first."""
        return self._stacked(1, 0)

    def _stacked(self, which: int, fill: float) -> Tensor:
        layers = to_host([self.of(layer)[which] for layer in range(self.view.n_layers)])
        widest = self.view.n_neurons
        return torch.stack(
            [torch.nn.functional.pad(of_layer, (0, widest - of_layer.shape[1]), value=fill) for of_layer in layers], 1
        )


@contextmanager
def peaks_of(view: ModelView, mask: Tensor) -> Iterator[Peaks]:
    """Inside, forwards of batches of `mask` [B, T], 1 where a token is, tell the largest activation of every neuron."""
    peaks = Peaks(view)
    with ExitStack() as undo:
        for layer, block in enumerate(view.blocks):
            undo.enter_context(at_neurons(block, partial(_look, layer=layer, mask=mask.bool(), peaks=peaks)))
        yield peaks


def _look(x: Tensor, passing: Passing, *, layer: int, mask: Tensor, peaks: Peaks) -> None:
    x = passing.spread(x.detach(), mask.shape)  # [B, T, F]
    x = x.to(torch.promote_types(x.dtype, torch.float32))
    is_token = passing.there(mask).to(x.device)
    peaks.parts[layer, passing.part.first] = _largest(x.masked_fill(~is_token[..., None], -torch.inf))


def _largest(x: Tensor) -> tuple[Tensor, Tensor]:
    value, position = x.max(1)
    return value, position
