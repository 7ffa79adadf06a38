"""Products of a gate and a signal: weights and values, queries and keys, the two branches of gated MLPs.

The uniform rule halves the gradient of both factors; the signal-takes-all rule holds the gate constant (AttnLRP
propositions 3.2 and 3.3; Close Look C.1, C.4). In attention these rules only scale the gradients of queries, keys and
values, so that any attention kernel can compute the rest.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from closelook.lrp_core.rules.switch import Ruled, Switch, with_value


def attend_with(query: Tensor, key: Tensor, value: Tensor, switch: Switch) -> tuple[Tensor, Tensor, Tensor]:
    """The same queries [B, H, T, K], keys and values [B, G, T, K]; their gradients are scaled by the bilinear rule."""
    if not switch.fixed:
        return Attend.apply(query, key, value, switch)
    rules = switch.current.bilinear
    return _scaled(query, rules.query_key), _scaled(key, rules.query_key), _scaled(value, rules.share)


def share(product: Tensor, switch: Switch) -> Tensor:
    """The same `product` of gate and signal (or a linear function of it); its gradient times the rule's share.

    Each factor then gets that share. Rules that hold the gate constant do so at the gate's activation, not here.
    """
    if switch.fixed:
        return _scaled(product, switch.current.bilinear.share)

    def rule(gradient: Tensor) -> tuple[Tensor]:
        factor = switch.current.bilinear.share
        return (gradient if factor == 1 else gradient * factor,)

    return Ruled.apply(product.detach(), rule, (), product)


def as_gate(gate: Tensor, switch: Switch) -> Tensor:
    """The same `gate`; without a gradient if the composite in force holds gates constant."""
    if switch.fixed:
        return gate if switch.current.bilinear.serves_gate else gate.detach()

    def rule(gradient: Tensor) -> tuple[Tensor | None]:
        return (gradient if switch.current.bilinear.serves_gate else None,)

    return Ruled.apply(gate.detach(), rule, (), gate)


def _scaled(x: Tensor, factor: float) -> Tensor:
    """The value x with `factor` times its gradient."""
    if factor in (0, 1):
        return x if factor else x.detach()
    return with_value(x * factor, x)


class Attend(Function):
    """Identity on queries, keys and values; scales their gradients by the composite's bilinear rule."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, switch: Switch) -> tuple[Tensor, Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        ctx.switch = switch
        return query, key, value

    @staticmethod
    def backward(ctx: Any, dq: Tensor, dk: Tensor, dv: Tensor) -> tuple[Tensor | None, ...]:
        rules = ctx.switch.current.bilinear
        if not rules.serves_gate:
            return None, None, dv if rules.share == 1 else dv * rules.share, None
        if rules.share == 1:
            return dq, dk, dv, None
        return *torch._foreach_mul((dq, dk, dv), (rules.query_key, rules.query_key, rules.share)), None
