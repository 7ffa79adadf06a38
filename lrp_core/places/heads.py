"""Relevance of attention heads, and of the outputs of attention's linear layers, read while the gradient passes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor

from closelook.lrp_core.device.precision import wide
from closelook.lrp_core.operations.watching import watched
from closelook.lrp_core.places.reading import Reader, tap_output
from closelook.lrp_core.rules.records import Composite


def pool(relevance: Tensor) -> Tensor:
    """One number for each head and pooling [B, H, P], in the order of POOLINGS, from relevance [B, T, H, K]."""
    per_token = relevance.sum(-1)  # [B, T, H]
    by_entry = relevance.relu().sum((1, 3))
    return torch.stack([by_entry, per_token.relu().sum(1), per_token.sum(1)], -1)


class HeadRelevance(Reader):
    """Relevance of the head outputs of each layer."""

    def after_attention(self, layer: int, context: Tensor) -> Tensor:
        """The same head outputs [B, T, H, K]; their relevance is read when their gradient arrives."""
        return watched(context, partial(self.read, layer))

    def read(self, layer: int, gradient: Tensor, value: Tensor) -> None:
        """Pool the relevance of head outputs [B, T, H, K]."""
        for name, measure in self.measures.items():
            self._read[name][layer] = pool(measure(wide(gradient), wide(value)))

    def fields(self, name: str, composite: Composite, conserves: bool) -> dict[str, Tensor | None]:
        return {"heads": self.pooled(name)}

    def pooled(self, name: str) -> Tensor:
        """The relevance of heads [B, L, H, P] in the backward pass that has just ended, under the measure `name`."""
        return self._stacked(name, range(self.view.n_layers))


#: By name of a field of `Relevance`: the columns of a module's output that make the field, and its shape per sample.
OutputColumns = Mapping[str, tuple[Any, tuple[int, ...]]]
_OF_WEIGHTS = ("queries", "keys")


class ProjectionRelevance(Reader):
    """Relevance of each attention layer's queries, keys, values and outputs.

    It is that of the linear layers' outputs, biases included, before head norms and rotary positions. Queries and keys
    share the relevance of attention scores. A key-value head has the relevance of all query heads of its group.
    """

    @contextmanager
    def tapping(self) -> Iterator[None]:
        """Inside, the outputs of attention's linear layers are read."""
        with ExitStack() as undo:
            for layer, block in enumerate(self.view.blocks):
                for module, outputs in block.projections().items():
                    hook = partial(tap_output, read=partial(self.read, layer, outputs))
                    undo.enter_context(module.register_forward_hook(hook))
            yield

    def read(self, layer: int, outputs: OutputColumns, gradient: Tensor, value: Tensor) -> None:
        """Sum the relevance of a module's output over positions, from gradient and value [B, T, O] or [B * T, O]."""
        by_token = (*self.mask.shape, -1)
        padding = (self.mask == 0).to(value.device)[..., None]
        for name, measure in self.measures.items():
            relevance = measure(wide(gradient.reshape(by_token)), wide(value.reshape(by_token)))
            total = relevance.masked_fill(padding, 0).sum(1)  # [B, O]
            for field, (columns, shape) in outputs.items():
                self._read[name][field, layer] = total[:, columns].unflatten(1, shape)

    def fields(self, name: str, composite: Composite, conserves: bool) -> dict[str, Tensor | None]:
        """Fields `queries`, `keys`, `values` and `outputs`, each [B, L, ...].

        Queries and keys are None under composites that hold attention weights constant.
        """
        relevance: dict[str, Tensor | None] = dict.fromkeys(_OF_WEIGHTS)
        for field in dict.fromkeys(field for field, _ in self._read[name]):
            if composite.bilinear.serves_gate or field not in _OF_WEIGHTS:
                relevance[field] = self._stacked(name, [(field, layer) for layer in range(self.view.n_layers)])
        return relevance
