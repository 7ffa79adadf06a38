"""Relevance of what the linear layers of attention put out, summed over positions while the gradient passes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from lrp_core.rules.heads import Measure

#: By name of a field of `Relevance`: the columns of a module's output, and the shape that they have.
OutputColumns = Mapping[str, tuple[Any, tuple[int, ...]]]
_OF_WEIGHTS = ("queries", "keys")


class ProjectionRelevance:
    """Relevance of each attention layer's queries, keys, values and outputs in the current backward pass, by measure.

    Values of the layers themselves, their biases included, before norms of heads and rotation. Queries and keys share
    the relevance of the scores that they make, with one key-value head for its group of queries.
    """

    def __init__(self, n_layers: int, mask: Tensor) -> None:
        """`mask` [B, T] is 1 where a token is."""
        self.n_layers, self.mask = n_layers, mask
        self.begin({})

    def begin(self, measures: dict[str, Measure]) -> None:
        """Starts a backward pass that is read under each of these measures."""
        self.measures = measures
        self._read: dict[str, dict[tuple[str, int], Tensor]] = {name: {} for name in measures}

    def read(self, layer: int, outputs: OutputColumns, gradient: Tensor, value: Tensor) -> None:
        """Gradient and value [B, T, O], or [B * T, O], of a module's output."""
        wide = torch.promote_types(value.dtype, torch.float32)
        gradient, value = (x.reshape(*self.mask.shape, -1).to(wide) for x in (gradient, value))
        padding = (self.mask == 0).to(value.device)[..., None]
        for name, measure in self.measures.items():
            total = measure(gradient, value).masked_fill(padding, 0).sum(1)  # [B, O]
            for what, (columns, shape) in outputs.items():
                self._read[name][what, layer] = total[:, columns].unflatten(1, shape)

    def of(self, name: str, weighed: bool) -> dict[str, Tensor | None]:
        """Fields of `Relevance`, [B, L, ...]; `weighed`: attention weights, hence queries and keys, have relevance."""
        relevance: dict[str, Tensor | None] = dict.fromkeys(_OF_WEIGHTS)
        for what in dict.fromkeys(what for what, _ in self._read[name]):
            if weighed or what not in _OF_WEIGHTS:
                layers = [self._read[name][what, layer] for layer in range(self.n_layers)]
                relevance[what] = torch.stack([one.to(layers[0].device) for one in layers], 1)
        return relevance
