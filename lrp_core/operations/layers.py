"""The linear layers of a forward pass, and their groups, which its graph tells."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from closelook.lrp_core.operations.nodes import Plan


@dataclass
class Layer:
    """A linear layer of a forward pass, as a weight [out, in] and a bias [out] or None."""

    plan: Plan
    weight: Tensor
    bias: Tensor | None
    group: str = "linear"
    reads_out: bool = False  # whether its outputs are the logits
    kernel: dict[str, Any] | None = None  # of a convolution: arguments of `unfold`
    added: Tensor | float = 0.0  # what was added to its output later, as a bias

    def gradient(self, dy: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor]:
        """The gradient at x under the composite in force, from that at y."""
        of_layer = self.plan.composite.linear.of(self.group)
        weight, bias = self.weight.flatten(1).to(dy.dtype), self.bias
        inputs, dy, y = self._rows(x), self._outputs(dy), self._outputs(y)
        if of_layer.backward is None:
            return (self._gathered(dy @ weight, x),)
        y = y + self.added
        if isinstance(self.added, Tensor):
            bias = self.added.flatten() if bias is None else bias + self.added.flatten()
        if bias is not None and self.reads_out and self.plan.composite.constant_logits_bias:
            y, bias = y - bias, None
        sizes = (self.plan.sizes(weight),) if of_layer.reads_sizes else ()
        return (self._gathered(of_layer.backward(dy, inputs, y, weight, bias, *sizes), x),)

    def _rows(self, x: Tensor) -> Tensor:
        """The inputs [..., in] of the layer's dot products."""
        return x if self.kernel is None else nn.functional.unfold(x, **self.kernel).mT

    def _outputs(self, y: Tensor) -> Tensor:
        """Outputs [..., out]."""
        return y if self.kernel is None else y.flatten(2).mT

    def _gathered(self, dx: Tensor, x: Tensor) -> Tensor:
        """Gradients of `_rows` summed to those of x."""
        return dx if self.kernel is None else nn.functional.fold(dx.mT, x.shape[-2:], **self.kernel)


@dataclass
class Layers:
    """The linear layers of a forward pass by the node of their output, and the nodes of attention around them."""

    by_node: dict[Any, Layer] = field(default_factory=dict)
    attended: list[Any] = field(default_factory=list)  # nodes of what attention reads
    results: set[Any] = field(default_factory=set)  # nodes of what attention returns

    def attend(self, result: Tensor, *read: Any) -> None:
        """Enter an attention by its result and the nodes that it reads."""
        self.attended += [node for node in read if node is not None]
        self.results.add(result.grad_fn)

    def group(self, numbers: Tensor) -> None:
        """Tell each layer its group, from the graph of the explained numbers."""
        for node in self.attended:
            for layer in self._first(node):
                layer.group = "input_projection"
        for node, layer in self.by_node.items():
            before = [after for after, _ in node.next_functions]
            if layer.kernel is None and any(self._reaches_attention(after) for after in before):
                layer.group = "output_projection"
        for layer in self._first(numbers.grad_fn):
            layer.reads_out = True

    def _first(self, start: Any) -> Iterator[Layer]:
        """The layers that a node reads without another layer between."""
        for node in self._until(start, self.by_node):
            if node in self.by_node:
                yield self.by_node[node]

    def _reaches_attention(self, start: Any) -> bool:
        """True if a node reads the result of attention without a layer between."""
        return any(node in self.results for node in self._until(start, self.by_node))

    @staticmethod
    def _until(start: Any, stops: Any) -> Iterator[Any]:
        """The nodes below a node, up to and with the first of `stops` on each path."""
        todo, seen = [start], set()
        while todo:
            node = todo.pop()
            if node is None or node in seen:
                continue
            seen.add(node)
            yield node
            if node not in stops:
                todo += [after for after, _ in node.next_functions]
