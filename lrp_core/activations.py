"""Activations of neurons, reduced while a forward pass goes by: nothing of length T times F is kept."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from lrp_core.view import ModelView


@dataclass
class Peaks:
    """The largest activation of every neuron in each row of the last forward, and where."""

    layers: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)  # layer -> value and position [B, F]

    @property
    def values(self) -> Tensor:
        """[B, L, F], in float32 at least."""
        return torch.stack([self.layers[layer][0].cpu() for layer in sorted(self.layers)], 1)

    @property
    def positions(self) -> Tensor:
        """[B, L, F] int64; of equal activations the first."""
        return torch.stack([self.layers[layer][1].cpu() for layer in sorted(self.layers)], 1)


@contextmanager
def peaks_of(view: ModelView, mask: Tensor) -> Iterator[Peaks]:
    """Inside, forwards of batches of `mask` [B, T], 1 where a token is, tell the largest activation of every neuron."""
    peaks = Peaks()
    with ExitStack() as undo:
        for layer, block in enumerate(view.blocks):
            hook = partial(_look, layer=layer, mask=mask.bool(), peaks=peaks)
            undo.callback(block.down.register_forward_pre_hook(hook).remove)
        yield peaks


def _look(_: nn.Module, args: tuple[Any, ...], *, layer: int, mask: Tensor, peaks: Peaks) -> None:
    x = args[0].detach().view(*mask.shape, -1)  # [B, T, F]; some families flatten it
    x = x.to(torch.promote_types(x.dtype, torch.float32))
    value, position = x.masked_fill(~mask.to(x.device)[..., None], -torch.inf).max(1)
    peaks.layers[layer] = value, position
