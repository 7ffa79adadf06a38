"""The composites a graph is built for, and the two ways in which a rule is written into it.

The canonical form of every rule is `Ruled`, an autograd Function: its forward returns the stock value, its backward
asks the switch which composite is in force. One forward then serves every composite that is planned.

Beside it stands a surrogate where a rule has one, for graphs of a single composite: an expression, written as Close
Look's appendix C prints it, whose own gradient is that of the rule and whose value is replaced by the stock one
(`with_value`). The two are equal: in every surrogate what the rule holds constant is detached, so that it is linear in
its input, and autograd's gradient of it is dy times that constant, which is what the Function's backward returns. The
value has no part in it, because the gradient of a linear expression does not depend on where it is taken. What is
gained is that the backward pass runs no Python.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from lrp_core.rules.records import Composite


@dataclass
class Switch:
    """The composites a graph is built for, and the one the next backward pass follows."""

    planned: tuple[Composite, ...]
    current: Composite
    fixed: bool = field(init=False)  # nothing to switch: surrogates are written into the graph
    plain_too: bool = field(init=False)  # norms and activations keep what the true gradient needs
    _room: Tensor | None = field(init=False, default=None)  # for |W| of one layer after another

    def __post_init__(self) -> None:
        self.plain_too = not all(composite.is_linear for composite in self.planned)
        self.fixed = len(self.planned) == 1 and not self.plain_too

    def sizes(self, weight: Tensor) -> Tensor:
        """|weight|, until the next call. In fresh memory for every layer page faults would cost more than the sizes."""
        room = self._room
        if room is None or (room.dtype, room.device) != (weight.dtype, weight.device) or len(room) < weight.numel():
            room = self._room = weight.new_empty(weight.numel())
        return torch.abs(weight, out=room[: weight.numel()].view(weight.shape))


def with_value(surrogate: Tensor, value: Tensor) -> Tensor:
    """The number `value` with the gradient of `surrogate`, of the same shape and dtype; nothing is copied."""
    surrogate.data = value.detach()
    return surrogate


class Ruled(Function):
    """A value with the gradient that a rule gives its inputs.

    `Ruled.apply(value, rule, kept, *inputs)` is `value`, which has no graph; `rule(gradient, *kept)` gives the tuple of
    the inputs' gradients. The tensors `kept` are freed with the graph.
    """

    @staticmethod
    def forward(ctx: Any, value: Tensor, rule: Callable[..., Any], kept: Sequence[Tensor], *inputs: Tensor) -> Tensor:
        ctx.rule = rule
        ctx.save_for_backward(*kept)
        return value

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return None, None, None, *ctx.rule(gradient, *ctx.saved_tensors)
