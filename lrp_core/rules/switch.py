"""The composites that a graph is built for, and the two ways to write a rule into a graph.

Every rule can be written as `Ruled`, an autograd Function: its forward returns the module's own value, its backward
asks the switch which composite is in force. So one forward pass serves all planned composites.

For a graph of a single composite many rules also have a surrogate: an expression, written as in Close Look's appendix
C, whose own gradient is that of the rule and whose value is replaced by the module's (`with_value`). Both ways give the
same gradient. A surrogate detaches whatever the rule holds constant, so it is linear in its input, and its gradient is
dy times that constant, as the Function's backward returns; replacing the value does not matter, since the gradient of a
linear expression is the same everywhere. Surrogates are faster: their backward pass runs no Python.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from closelook.lrp_core.rules.records import Composite


@dataclass
class Switch:
    """The composites that a graph is built for, and the one that is in force: the next backward pass follows it."""

    planned: tuple[Composite, ...]
    current: Composite  # the composite in force
    fixed: bool = field(init=False)  # one linear composite only: surrogates are written into the graph
    plain_too: bool = field(init=False)  # norms and activations keep their inputs, which true gradients need
    _room: Tensor | None = field(init=False, default=None)  # memory for |W| of one layer after another

    def __post_init__(self) -> None:
        self.plain_too = not all(composite.is_linear for composite in self.planned)
        self.fixed = len(self.planned) == 1 and not self.plain_too

    def sizes(self, weight: Tensor) -> Tensor:
        """|weight|, valid until the next call: memory is reused, since new memory for each layer costs more time."""
        room = self._room
        if room is None or (room.dtype, room.device) != (weight.dtype, weight.device) or len(room) < weight.numel():
            room = self._room = weight.new_empty(weight.numel())
        return torch.abs(weight, out=room[: weight.numel()].view(weight.shape))


def with_value(surrogate: Tensor, value: Tensor) -> Tensor:
    """A tensor with the numbers of `value` and the gradient of `surrogate`, of the same shape and dtype; no copy."""
    surrogate.data = value.detach()
    return surrogate


class Ruled(Function):
    """A given value as a function of inputs, whose gradients a rule computes.

    `Ruled.apply(value, rule, kept, *inputs)` returns `value`, which must have no graph of its own. In the backward pass
    `rule(gradient, *kept)` returns the tuple of the inputs' gradients. The tensors `kept` are freed with the graph.
    """

    @staticmethod
    def forward(ctx: Any, value: Tensor, rule: Callable[..., Any], kept: Sequence[Tensor], *inputs: Tensor) -> Tensor:
        ctx.rule = rule
        ctx.save_for_backward(*kept)
        return value

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return None, None, None, *ctx.rule(gradient, *ctx.saved_tensors)
