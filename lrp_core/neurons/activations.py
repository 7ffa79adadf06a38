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
    """The largest activation of every neuron in each row of the last forward."""

    view: ModelView
    #: By layer and the number of a part's first neuron: [B, F] over the part's neurons.
    parts: dict[tuple[int, int], Tensor] = field(default_factory=dict)

    @property
    def values(self) -> Tensor:
        """The largest activations [B, L, F], on the CPU, in float32 at least.

        They are minus infinity for neurons of experts that no token was sent to, and after the last neuron of a layer
        that has fewer than others.
        """
        layers = []
        for layer, block in enumerate(self.view.blocks):
            of_layer = torch.cat([self.parts[layer, part.first] for part in block.feed_forwards], 1)
            missing = self.view.n_neurons - of_layer.shape[1]
            layers.append(torch.nn.functional.pad(of_layer, (0, missing), value=-torch.inf))
        return torch.stack(to_host(layers), 1)


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
    peaks.parts[layer, passing.part.first] = wide(x).masked_fill(~is_token[..., None], -torch.inf).amax(1)
