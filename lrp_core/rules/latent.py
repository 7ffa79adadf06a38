"""Relevance inside the model, reduced while the gradient passes: of neurons, of projections, of whole layers.

Neurons are what enters the down projection of a feed-forward layer: the outputs of its last non-linearity or, in gated
layers, the products of gate and signal (AttnLRP 3.4 and 4.3). Nothing of length T times F is kept of any sample.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

Measure = Callable[[Tensor, Tensor], Tensor]  # (gradient, value) to relevance, elementwise
#: Why a layer keeps relevance: biases take the share of their value, attention what its softmax absorbs, and in layers
#: with experts their router what its own absorbs, and the sigmoid before the expert that is shared.
KEPT = ("biases", "attention", "router")
_PIECES = 16  # in which the positions of a sample are read


class Tap(Function):
    """A tensor as it is; hands its gradient and value to `read` when the gradient comes by."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, read: Callable[[Tensor, Tensor], None]) -> Tensor:
        ctx.read = read
        ctx.save_for_backward(x)
        return x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        ctx.read(gradient, x)
        return gradient, None


class BiasTap(Function):
    """A `Tap` whose reader needs the gradient alone: the value is not kept."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, read: Callable[[Tensor], None]) -> Tensor:
        ctx.read = read
        return x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        ctx.read(gradient)
        return gradient, None


@dataclass(frozen=True)
class Neurons:
    """The relevance of neurons in one backward pass under one measure, each [B, L, F]."""

    total: Tensor  # the sum over positions
    at: Tensor  # the position where the absolute relevance is largest, int64; -1 where no token reached the neuron
    value: Tensor  # the neuron's activation there


class NeuronRelevance:
    """What the neurons of the current backward pass were worth, by measure and layer."""

    def __init__(self, n_layers: int, n_neurons: int, mask: Tensor) -> None:
        """`n_neurons` are those of the widest layer; `mask` [B, T] is 1 where a token is."""
        self.n_layers, self.n_neurons, self.mask = n_layers, n_neurons, mask
        self.begin({})

    def begin(self, measures: dict[str, Measure]) -> None:
        """Starts a backward pass that is read under each of these measures."""
        self.measures = measures
        self._read: dict[str, dict[tuple[int, int], Neurons]] = {name: {} for name in measures}

    def read(self, layer: int, first: int, share: float, gradient: Tensor, value: Tensor, mask: Tensor) -> None:
        """Gradient and value [B, T, F] of the neurons of a layer from `first` on, at the tokens of `mask` [B, T].

        `share` of the relevance of a product is in the gradient.
        """
        for name, measure in self.measures.items():
            self._read[name][layer, first] = _reduced(gradient, value, measure, share, mask)

    def of(self, name: str) -> Neurons:
        """The neurons of the pass that has just ended."""
        parts = self._read[name]
        return Neurons(*(self._whole(parts, part, fill) for part, fill in (("total", 0), ("at", -1), ("value", 0))))

    def _whole(self, parts: Mapping[tuple[int, int], Neurons], name: str, fill: float) -> Tensor:
        """[B, L, F], with `fill` where a layer has fewer neurons than another, or no relevance came to an expert."""
        one = getattr(next(iter(parts.values())), name)
        whole = one.new_full((one.shape[0], self.n_layers, self.n_neurons), fill)
        for (layer, first), part in parts.items():
            own = getattr(part, name)
            whole[:, layer, first : first + own.shape[1]] = own
        return whole


def _reduced(gradient: Tensor, value: Tensor, measure: Measure, share: float, mask: Tensor) -> Neurons:
    """A few positions at a time, so that what is worked out is never as large as what is read."""
    wide = torch.promote_types(value.dtype, torch.float32)
    mask = mask.to(value.device).bool()[..., None]  # [B, T, 1]
    size = -(-value.shape[1] // _PIECES)
    total = value.new_zeros(value.shape[0], value.shape[-1], dtype=wide)
    largest, best = torch.full_like(total, -1), torch.zeros_like(total)
    at = torch.full_like(total, -1, dtype=torch.int64)
    for start in range(0, value.shape[1], size):
        part = slice(start, start + size)
        relevance = measure(gradient[:, part].to(wide) / share, value[:, part].to(wide))
        total += relevance.masked_fill(~mask[:, part], 0).sum(1)
        peak, where = relevance.abs().masked_fill(~mask[:, part], -1).max(1)  # [B, F]
        better = (peak > largest) | (peak.isnan() & ~largest.isnan())  # what is not a number counts as largest
        largest = torch.where(better, peak, largest)
        at = torch.where(better, where + start, at)
        best = torch.where(better, value[:, part].gather(1, where[:, None])[:, 0].to(wide), best)
    return Neurons(total, at, best)


class LayerRelevance:
    """What crosses every layer boundary in the current backward pass, by measure, and what a layer keeps of it."""

    def __init__(self, n_layers: int, n_rows: int, routed: bool) -> None:
        """`routed`: whether there are experts; without them there is no such reason."""
        self.n_layers, self.n_rows, self.reasons = n_layers, n_rows, KEPT if routed else KEPT[:2]
        self.begin({})

    def begin(self, measures: dict[str, Measure]) -> None:
        """Starts a backward pass that is read under each of these measures."""
        self.measures = measures
        self._crossing: dict[str, dict[int, Tensor]] = {name: {} for name in measures}  # [B], by boundary
        self._peaks: dict[str, dict[int, Tensor]] = {name: {} for name in measures}  # [B], by boundary
        self._kept: dict[str, dict[tuple[int, int], Tensor]] = {name: {} for name in measures}  # by layer and reason

    def cross(self, boundary: int, gradient: Tensor, value: Tensor) -> None:
        """The residual stream [B, T, D] at a boundary: 0 below the first block, L above the last."""
        for name, measure in self.measures.items():
            wide = torch.promote_types(value.dtype, torch.float32)
            by_token = measure(gradient.to(wide), value.to(wide)).sum(-1)  # [B, T]
            self._crossing[name][boundary] = by_token.sum(1)
            self._peaks[name][boundary] = by_token.abs().amax(1)

    def keep(self, layer: int, reason: int, sign: int, gradient: Tensor, value: Tensor) -> None:
        """Add the relevance of `value` to what `layer` keeps for `reason`, an index into KEPT."""
        for name, measure in self.measures.items():
            kept = self._kept[name]
            own = sign * self._whole(measure, gradient, value)
            kept[layer, reason] = kept[layer, reason] + own if (layer, reason) in kept else own

    def keep_bias(self, layer: int, bias: Tensor, gradient: Tensor) -> None:
        """Add what a module's `bias` [O] keeps of the relevance of its output [B, T, O]."""
        self.keep(layer, 0, 1, gradient, bias.to(gradient.device).expand_as(gradient))

    def of(self, name: str) -> dict[str, Tensor]:
        """Fields of `Relevance`, of the pass that has just ended: what crosses the boundaries and the largest of a
        token there, both [B, L + 1], and what is kept, by reason [B, L, R].
        """
        every = range(self.n_layers + 1)
        zero = torch.zeros_like(self._crossing[name][0])
        crossing, peaks = (
            torch.stack([measured[name][boundary].to(zero) for boundary in every], 1)
            for measured in (self._crossing, self._peaks)
        )
        kept = [
            torch.stack(
                [self._kept[name].get((layer, reason), zero).to(zero) for reason in range(len(self.reasons))], -1
            )
            for layer in range(self.n_layers)
        ]
        return {"boundaries": crossing, "peaks": peaks, "kept": torch.stack(kept, 1)}

    def _whole(self, measure: Measure, gradient: Tensor, value: Tensor) -> Tensor:
        """Relevance of a sample [B] from gradient and value [B, ...], or [B * T, ...], summed."""
        wide = torch.promote_types(value.dtype, torch.float32)
        return measure(gradient.to(wide), value.to(wide)).reshape(self.n_rows, -1).sum(1)
