"""Relevance inside the model, reduced while the gradient passes: of heads, of neurons, of whole layers.

Neurons are what enters the down projection of a feed-forward layer: the outputs of its last non-linearity or, in gated
layers, the products of gate and signal (AttnLRP 3.4 and 4.3). Nothing of length T times F is kept of any sample.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from lrp_core.precision import wide

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


class Reader:
    """Reads gradients and values that pass in a backward pass, under each measure of the methods that share it."""

    def __init__(self, n_layers: int) -> None:
        self.n_layers = n_layers
        self.begin({})

    def begin(self, measures: Mapping[str, Measure]) -> None:
        """Start a backward pass that is read under each of these measures."""
        self.measures = measures
        self._read: dict[str, dict[Any, Any]] = {name: {} for name in measures}

    def _stacked(self, name: str, keys: Iterable[Any]) -> Tensor:
        """The tensors [B, ...] that were read under `keys`, as [B, keys, ...] on the device of the first."""
        tensors = [self._read[name][key] for key in keys]
        return torch.stack([tensor.to(tensors[0].device) for tensor in tensors], 1)


def pool(relevance: Tensor) -> Tensor:
    """Relevance of head outputs [B, T, H, K] to one number per head and pooling [B, H, P], in the order of POOLINGS."""
    per_token = relevance.sum(-1)  # [B, T, H]
    by_entry = relevance.relu().sum((1, 3))
    return torch.stack([by_entry, per_token.relu().sum(1), per_token.sum(1)], -1)


class HeadRelevance(Reader):
    """Relevance of the head outputs of each layer."""

    def read(self, layer: int, gradient: Tensor, value: Tensor) -> None:
        """Pool the relevance of head outputs [B, T, H, K], so that nothing of length T is kept."""
        for name, measure in self.measures.items():
            self._read[name][layer] = pool(measure(wide(gradient), wide(value)))

    def of(self, name: str) -> Tensor:
        """[B, L, H, P] of the pass that has just ended."""
        return self._stacked(name, range(self.n_layers))


@dataclass(frozen=True)
class Neurons:
    """The relevance of neurons in one backward pass under one measure, each [B, L, F]."""

    total: Tensor  # the sum over positions
    at: Tensor  # the position where the absolute relevance is largest, int64; -1 where no token reached the neuron
    value: Tensor  # the neuron's activation there


class NeuronRelevance(Reader):
    """Relevance of the neurons of each layer."""

    def __init__(self, n_layers: int, n_neurons: int, mask: Tensor) -> None:
        """`n_neurons` are those of the widest layer; `mask` [B, T] is 1 where a token is."""
        super().__init__(n_layers)
        self.n_neurons, self.mask = n_neurons, mask

    def read(self, layer: int, first: int, share: float, gradient: Tensor, value: Tensor, mask: Tensor) -> None:
        """Gradient and value [B, T, F] of the neurons of a layer from `first` on, at the tokens of `mask` [B, T].

        `share` of the relevance of a product is in the gradient.
        """
        for name, measure in self.measures.items():
            self._read[name][layer, first] = _reduced(gradient, value, measure, share, mask)

    def of(self, name: str) -> Neurons:
        """The neurons of the pass that has just ended; 0, -1 and 0 where a layer has fewer than another."""
        parts = self._read[name]
        some = next(iter(parts.values()))
        shape = len(some.total), self.n_layers, self.n_neurons
        whole = Neurons(some.total.new_zeros(shape), some.at.new_full(shape, -1), some.value.new_zeros(shape))
        for (layer, first), part in parts.items():
            columns = slice(first, first + part.total.shape[1])
            whole.total[:, layer, columns] = part.total
            whole.at[:, layer, columns] = part.at
            whole.value[:, layer, columns] = part.value
        return whole


def _reduced(gradient: Tensor, value: Tensor, measure: Measure, share: float, mask: Tensor) -> Neurons:
    """A few positions at a time, so that what is worked out is never as large as what is read."""
    padding = ~mask.to(value.device).bool()[..., None]  # [B, T, 1]
    size = -(-value.shape[1] // _PIECES)
    total = torch.zeros_like(wide(value[:, 0]))
    largest, best = torch.full_like(total, -1), torch.zeros_like(total)
    at = torch.full_like(total, -1, dtype=torch.int64)
    for start in range(0, value.shape[1], size):
        part = slice(start, start + size)
        relevance = measure(wide(gradient[:, part]) / share, wide(value[:, part]))
        total += relevance.masked_fill(padding[:, part], 0).sum(1)
        peak, where = relevance.abs().masked_fill(padding[:, part], -1).max(1)  # [B, F]
        better = (peak > largest) | (peak.isnan() & ~largest.isnan())  # what is not a number counts as largest
        largest = torch.where(better, peak, largest)
        at = torch.where(better, where + start, at)
        activation = value[:, part].gather(1, where[:, None])[:, 0]
        best = torch.where(better, wide(activation), best)
    return Neurons(total, at, best)


class LayerRelevance(Reader):
    """Relevance that crosses every boundary between layers, and what a layer keeps of it."""

    def __init__(self, n_layers: int, n_rows: int, routed: bool) -> None:
        """`routed`: whether there are experts; without them there is no such reason."""
        super().__init__(n_layers)
        self.n_rows, self.n_reasons = n_rows, len(KEPT) if routed else 2

    def cross(self, boundary: int, gradient: Tensor, value: Tensor) -> None:
        """The residual stream [B, T, D] at a boundary: 0 below the first block, L above the last."""
        for name, measure in self.measures.items():
            by_token = measure(wide(gradient), wide(value)).sum(-1)  # [B, T]
            self._read[name]["boundaries", boundary] = by_token.sum(1)
            self._read[name]["peaks", boundary] = by_token.abs().amax(1)

    def keep(self, layer: int, reason: int, sign: int, gradient: Tensor, value: Tensor) -> None:
        """Add the relevance of `value` [B, ...], or [B * T, ...], to what `layer` keeps for `reason`, of KEPT."""
        for name, measure in self.measures.items():
            relevance = measure(wide(gradient), wide(value)).reshape(self.n_rows, -1).sum(1)  # [B]
            kept = self._read[name]
            before = kept.get((layer, reason))
            kept[layer, reason] = sign * relevance if before is None else before + sign * relevance

    def keep_bias(self, layer: int, bias: Tensor, gradient: Tensor) -> None:
        """Add what a module's `bias` [O] keeps of the relevance of its output [B, T, O]."""
        self.keep(layer, 0, 1, gradient, bias.to(gradient.device).expand_as(gradient))

    def of(self, name: str) -> dict[str, Tensor]:
        """Fields of `Relevance`, of the pass that has just ended: what crosses the boundaries and the largest of a
        token there, both [B, L + 1], and what is kept, by reason [B, L, R].
        """
        boundaries = range(self.n_layers + 1)
        crossing, peaks = (self._stacked(name, [(field, at) for at in boundaries]) for field in ("boundaries", "peaks"))
        kept = torch.zeros_like(crossing[:, 1:, None].expand(-1, -1, self.n_reasons))
        for layer in range(self.n_layers):
            for reason in range(self.n_reasons):
                if (layer, reason) in self._read[name]:
                    kept[:, layer, reason] = self._read[name][layer, reason]
        return {"boundaries": crossing, "peaks": peaks, "kept": kept}
