"""Relevance of attention heads, pooled while the gradient passes so that nothing of length T is kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

Measure = Callable[[Tensor, Tensor], Tensor]  # (gradient, value) to relevance, elementwise


def pool(relevance: Tensor) -> Tensor:
    """Relevance of head outputs [B, T, H, K] to one number per head and pooling [B, H, P], in the order of POOLINGS."""
    per_token = relevance.sum(-1)  # [B, T, H]
    return torch.stack([relevance.relu().sum((1, 3)), per_token.relu().sum(1), per_token.sum(1)], dim=-1)


class HeadRelevance:
    """What the head outputs of the current backward pass were worth, by measure and layer."""

    def __init__(self, n_layers: int) -> None:
        self.n_layers = n_layers
        self.begin({})

    def begin(self, measures: dict[str, Measure]) -> None:
        """Starts a backward pass that is read under each of these measures."""
        self.measures = measures
        self._pooled: dict[str, dict[int, Tensor]] = {name: {} for name in measures}

    def read(self, layer: int, gradient: Tensor, value: Tensor) -> None:
        wide = torch.promote_types(value.dtype, torch.float32)
        for name, measure in self.measures.items():
            self._pooled[name][layer] = pool(measure(gradient.to(wide), value.to(wide)))

    def of(self, name: str) -> Tensor:
        """[B, L, H, P] of the pass that has just ended."""
        layers = [self._pooled[name][layer] for layer in range(self.n_layers)]
        return torch.stack([layer.to(layers[0].device) for layer in layers], dim=1)


class HeadPooling(Function):
    """Head outputs [B, T, H, K] as they are; hands their gradient and value to `heads` when the gradient comes by."""

    @staticmethod
    def forward(ctx: Any, context: Tensor, layer: int, heads: HeadRelevance) -> Tensor:
        ctx.layer, ctx.heads = layer, heads
        ctx.save_for_backward(context)
        return context

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (context,) = ctx.saved_tensors
        ctx.heads.read(ctx.layer, gradient, context)
        return gradient, None, None
