"""Relevance of attention heads, pooled while the gradient passes."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from lrp_core.device.precision import wide
from lrp_core.rules.reading import Reader, Tap
from lrp_core.rules.records import Composite


def pool(relevance: Tensor) -> Tensor:
    """One number for each head and pooling [B, H, P], in the order of POOLINGS, from relevance [B, T, H, K]."""
    per_token = relevance.sum(-1)  # [B, T, H]
    by_entry = relevance.relu().sum((1, 3))
    return torch.stack([by_entry, per_token.relu().sum(1), per_token.sum(1)], -1)


class HeadRelevance(Reader):
    """Relevance of the head outputs of each layer."""

    def after_attention(self, layer: int, context: Tensor) -> Tensor:
        """The same head outputs [B, T, H, K]; their relevance is read when their gradient arrives."""
        return Tap.apply(context, partial(self.read, layer))

    def read(self, layer: int, gradient: Tensor, value: Tensor) -> None:
        """Pool the relevance of head outputs [B, T, H, K]."""
        for name, measure in self.measures.items():
            self._read[name][layer] = pool(measure(wide(gradient), wide(value)))

    def fields(self, name: str, composite: Composite, conserves: bool) -> dict[str, Tensor | None]:
        return {"heads": self.pooled(name)}

    def pooled(self, name: str) -> Tensor:
        """The relevance of heads [B, L, H, P] in the backward pass that has just ended, under the measure `name`."""
        return self._stacked(name, range(self.view.n_layers))
