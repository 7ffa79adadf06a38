"""Relevance of the outputs of attention's linear layers, summed over positions during the backward pass."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

from torch import Tensor

from lrp_core.device.precision import wide
from lrp_core.rules.reading import Reader, tap_output
from lrp_core.rules.records import Composite
from lrp_core.rules.switch import Switch

#: By name of a field of `Relevance`: the columns of a module's output that make the field, and its shape per sample.
OutputColumns = Mapping[str, tuple[Any, tuple[int, ...]]]
_OF_WEIGHTS = ("queries", "keys")


class ProjectionRelevance(Reader):
    """Relevance of each attention layer's queries, keys, values and outputs.

    It is that of the linear layers' outputs, biases included, before head norms and rotary positions. Queries and keys
    share the relevance of attention scores. A key-value head has the relevance of all query heads of its group.
    """

    @contextmanager
    def tapping(self, switch: Switch) -> Iterator[None]:
        """Inside, the outputs of attention's linear layers are read."""
        with ExitStack() as undo:
            for layer, block in enumerate(self.view.blocks):
                for module, outputs in block.projections().items():
                    read = partial(self.read, layer, outputs)
                    undo.callback(module.register_forward_hook(partial(tap_output, read=read)).remove)
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
