"""The largest activation of every neuron in each row, found during a forward pass without keeping all activations."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from closelook.lrp_core.device.precision import wide
from closelook.lrp_core.device.transfer import to_host
from closelook.lrp_core.readers.feed_forward import Passing, at_neurons
from closelook.lrp_core.views.view import ModelView


@dataclass
class Peaks:
    """The largest activation of every neuron in each row of the last forward, and its position.

    It is minus infinity for neurons of experts that no token was sent to, and after the last neuron of a layer that
    has fewer than others.
    """

    view: ModelView
    #: By layer and the number of a part's first neuron: value and position, each [B, F] over the part's neurons.
    parts: dict[tuple[int, int], tuple[Tensor, Tensor]] = field(default_factory=dict)

    def of(self, layer: int) -> tuple[Tensor, Tensor]:
        """Value and position, each [B, F], of the neurons of one layer."""
        parts = [self.parts[layer, part.first] for part in self.view.blocks[layer].feed_forwards]
        values, positions = (torch.cat([pair[i] for pair in parts], 1) for i in range(2))
        return values, positions

    @property
    def values(self) -> Tensor:
        """The largest activations [B, L, F] of all layers, on the CPU, in float32 at least."""
        return self._stacked(0, -torch.inf)

    @property
    def positions(self) -> Tensor:
        """The positions [B, L, F] of the largest activations, on the CPU, int64; of equal activations the first."""
        return self._stacked(1, 0)

    def _stacked(self, which: int, fill: float) -> Tensor:
        """Values (`which` 0) or positions (1) of all layers [B, L, F], with `fill` after a layer's last neuron."""
        layers = to_host([self.of(layer)[which] for layer in range(self.view.n_layers)])
        widest = self.view.n_neurons
        padded = [torch.nn.functional.pad(values, (0, widest - values.shape[1]), value=fill) for values in layers]
        return torch.stack(padded, 1)


@contextmanager
def peaks_of(view: ModelView, mask: Tensor) -> Iterator[Peaks]:
    """Inside, every forward of a batch writes the largest activation of each neuron into the Peaks that this yields.

    `mask` [B, T] is 1 for the tokens that count.
    """
    peaks = Peaks(view)
    with ExitStack() as undo:
        for layer, block in enumerate(view.blocks):
            undo.enter_context(at_neurons(block, partial(_look, layer=layer, mask=mask.bool(), peaks=peaks)))
        yield peaks


def _look(x: Tensor, passing: Passing, *, layer: int, mask: Tensor, peaks: Peaks) -> None:
    """Visitor of `at_neurons`: notes the largest activations of a part in `peaks`."""
    x = passing.spread(x.detach(), mask.shape)  # [B, T, F]
    is_token = passing.there(mask).to(x.device)
    peaks.parts[layer, passing.part.first] = _largest(wide(x).masked_fill(~is_token[..., None], -torch.inf))


def _largest(x: Tensor) -> tuple[Tensor, Tensor]:
    """The largest of x [B, T, F] over positions and its position, each [B, F]."""
    value, position = x.max(1)
    return value, position
