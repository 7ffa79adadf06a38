"""Nodes of the graph whose gradient follows the composite in force, which is chosen when the backward pass runs.

So one forward pass serves several composites. What all of them treat alike is decided in the forward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from closelook.lrp_core.rules.records import Composite

Rule = Callable[..., tuple[Tensor | None, ...]]


@dataclass
class Plan:
    """The composites that a graph is built for, and the index of the one that the next backward pass follows."""

    composites: tuple[Composite, ...]
    current: int = 0
    _chosen: dict[Any, tuple[Any, ...]] = field(default_factory=dict, repr=False)  # by the arguments of `each`
    _room: Tensor | None = field(default=None, repr=False)  # memory for |W| of one layer after another

    @property
    def composite(self) -> Composite:
        """The composite in force."""
        return self.composites[self.current]

    def each(self, choose: Callable[..., Any], *facts: Any) -> tuple[Any, ...]:
        """`choose(composite, *facts)` of each composite."""
        key = (choose, facts)
        if key not in self._chosen:
            self._chosen[key] = tuple(choose(composite, *facts) for composite in self.composites)
        return self._chosen[key]

    def sizes(self, weight: Tensor) -> Tensor:
        """|weight|, valid until the next call: memory is reused, since new memory for each layer costs more time."""
        room = self._room
        if room is None or (room.dtype, room.device) != (weight.dtype, weight.device) or len(room) < weight.numel():
            room = self._room = weight.new_empty(weight.numel())
        return torch.abs(weight, out=room[: weight.numel()].view(weight.shape))


def holds_deviations(composite: Composite) -> bool:
    """True if a composite holds the deviations of norms constant."""
    return composite.normalization.constant


def holds_activations(composite: Composite) -> bool:
    """True if a composite holds the ratios of activations, and gates, constant."""
    return composite.activation.constant


class Ruled(Function):
    """A value as a function of inputs, whose gradients a rule computes.

    `Ruled.apply([value], rule, kept, *inputs)` returns the numbers of `value`. In the backward pass
    `rule(gradient, *kept)` returns the tuple of the inputs' gradients. The tensors `kept` are freed with the graph.
    """

    @staticmethod
    def forward(ctx: Any, value: list[Tensor], rule: Rule, kept: Sequence[Tensor], *inputs: Tensor) -> Tensor:
        ctx.set_materialize_grads(False)
        ctx.rule = rule
        if kept:
            ctx.save_for_backward(*kept)
        return value[0].detach()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor | None) -> Any:
        if gradient is None:
            return (None,) * len(ctx.needs_input_grad)
        return None, None, None, *ctx.rule(gradient, *ctx.saved_tensors)


def ruled(value: Tensor, rule: Rule, kept: Sequence[Tensor], *inputs: Tensor) -> Tensor:
    """The numbers of `value`, whose gradients at `inputs` are `rule(gradient, *kept)`."""
    return Ruled.apply([value], rule, kept, *inputs)


def scaled(x: Tensor, factors: Sequence[float], plan: Plan) -> Tensor:
    """The same x; its gradient is multiplied by the factor of the composite in force, one of `factors`."""
    if not any(factor != 1 for factor in factors):
        return x
    if not any(factors):
        return x.detach()

    def rule(gradient: Tensor) -> tuple[Tensor | None]:
        factor = factors[plan.current]
        if factor in (0, 1):
            return (gradient if factor else None,)
        return (gradient * factor,)

    return ruled(x, rule, (), x)


def with_value(surrogate: Tensor, value: Tensor) -> Tensor:
    """A tensor with the numbers of `value` and the gradient of `surrogate`, of the same shape and dtype; no copy."""
    surrogate.data = value.detach()
    return surrogate
