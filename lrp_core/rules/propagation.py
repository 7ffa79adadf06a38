"""Propagation rules of AttnLRP: functions whose backward pass turns relevance of the output into that of the input."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from closelook.lrp_core.device.expert_rows import ExpertRows
from closelook.lrp_core.device.precision import wide
from closelook.lrp_core.rules.switch import Ruled


def stabilised(z: Tensor, epsilon: float) -> Tensor:
    """z + epsilon * sign(z), with sign(0) = 1: never zero."""
    return torch.where(z < 0, z - epsilon, z + epsilon)


def linear_rule(x: Tensor, weight: Tensor, bias: Tensor | None = None, *, epsilon: float) -> Tensor:
    """The linear layer x W^T + b with the epsilon rule: x [..., I], weight [O, I] and bias [O] to [..., O].

    R_i = sum_j x_i w_ji R_j / y_j; biases keep their share (AttnLRP equation 8, Close Look equation 1). A
    half-precision weight is kept as it is in the graph and converted when it is used.
    """

    def rule(relevance: Tensor, x: Tensor, weight: Tensor, y: Tensor) -> tuple[Tensor]:
        return (x * ((relevance / stabilised(y, epsilon)) @ wide(weight)),)

    with torch.no_grad():
        y = torch.nn.functional.linear(x, wide(weight), None if bias is None else wide(bias))
    return Ruled.apply(y, rule, (x, weight, y), x)


def linear_of_experts_rule(x: Tensor, weight: Tensor, rows: ExpertRows, *, epsilon: float) -> Tensor:
    """`linear_rule` without bias for experts: rows x [S, I], sorted by expert, and weights [E, O, I] to [S, O]."""

    def rule(relevance: Tensor, x: Tensor, weight: Tensor, y: Tensor) -> tuple[Tensor]:
        return (x * rows.multiplied(relevance / stabilised(y, epsilon), weight.mT),)

    with torch.no_grad():
        y = rows.multiplied(x, weight)
    return Ruled.apply(y, rule, (x, weight, y), x)


def add_rule(a: Any, b: Any, *, epsilon: float) -> Tensor:
    """a + b; the terms share relevance in proportion to their values (epsilon rule).

    A term that needs no gradient is a constant, such as a position embedding: the other gets all.
    """
    if not (_tracked(a) and _tracked(b)):
        return torch.add(a, b) if isinstance(a, Tensor) else torch.add(b, a)

    def rule(relevance: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        share = relevance / stabilised(a + b, epsilon)
        return a * share, b * share

    return Ruled.apply(a.detach() + b.detach(), rule, (a, b), a, b)


def product_rule(a: Any, b: Any) -> Tensor:
    """a * b, whose backward gives each factor half of the relevance (AttnLRP proposition 3.2).

    A factor that needs no gradient is a constant: the other gets all.
    """
    if not _tracked(b):
        return identity_rule(a, a.detach() * b)
    if not _tracked(a):
        return identity_rule(b, b.detach() * a)

    shapes = a.shape, b.shape

    def rule(relevance: Tensor) -> tuple[Tensor, ...]:
        half = relevance * 0.5
        return tuple(half.sum_to_size(shape) for shape in shapes)

    return Ruled.apply(a.detach() * b.detach(), rule, (), a, b)


def _tracked(x: Any) -> bool:
    """True for a tensor that needs a gradient."""
    return isinstance(x, Tensor) and x.requires_grad


def identity_rule(x: Tensor, y: Tensor) -> Tensor:
    """The value y, an elementwise function of x; its relevance passes to x unchanged (AttnLRP equation 9)."""
    return Ruled.apply(y, lambda relevance: (relevance,), (), x)


def matmul_rule(a: Tensor, v: Tensor, epsilon: float) -> Tensor:
    """The matrix product O = A V of a [..., M, N] and v [..., N, P].

    R_A = A * (R / 2O) V^T and R_V = V * A^T (R / 2O) (AttnLRP proposition 3.3).
    """

    def rule(relevance: Tensor, a: Tensor, v: Tensor, out: Tensor) -> tuple[Tensor, Tensor]:
        share = relevance / stabilised(2 * out, epsilon)
        return a * (share @ v.transpose(-1, -2)), v * (a.transpose(-1, -2) @ share)

    out = a.detach() @ v.detach()
    return Ruled.apply(out, rule, (a, v, out), a, v)


def softmax_rule(x: Tensor, mask: Tensor | None) -> Tensor:
    """Softmax over the last axis of x plus an additive mask, which is a constant.

    R_i = x_i (R_i - s_i sum_j R_j) (AttnLRP proposition 3.1, equation 13).
    """

    def rule(relevance: Tensor, x: Tensor, s: Tensor) -> tuple[Tensor]:
        return (x * (relevance - s * relevance.sum(-1, keepdim=True)),)

    s = torch.softmax(x.detach() if mask is None else x.detach() + mask, dim=-1)
    return Ruled.apply(s, rule, (x, s), x)


def sigmoid_rule(x: Tensor) -> Tensor:
    """The sigmoid of x, as the softmax over x and 0, with the rule of the softmax."""
    return softmax_rule(torch.stack([x, torch.zeros_like(x)], -1), None)[..., 0]


def routing_rule(x: Tensor, weights: Tensor, route: Callable[[Tensor], Tensor], epsilon: float) -> Tensor:
    """The `weights` [N, k] of experts, which `route` computes from the states x [N, D].

    R_x = x * J^T (R / w), with J the Jacobian of `route`: gradient x input through its linear layer, softmax, choice
    and renormalisation together.
    """

    def rule(relevance: Tensor, x: Tensor, weights: Tensor) -> tuple[Tensor]:
        with torch.enable_grad():
            leaf = x.detach().requires_grad_()
            (gradient,) = torch.autograd.grad(route(leaf), leaf, relevance / stabilised(weights, epsilon))
        return (x * gradient,)

    weights = weights.detach()
    return Ruled.apply(weights.clone(), rule, (x, weights), x)


def norm_rule(x: Tensor, y: Tensor, scale: Tensor, centred: bool, epsilon: float) -> Tensor:
    """The output y [..., D] of a norm, which multiplies x (minus its mean if `centred`) by `scale` [..., D].

    The standard deviation, in `scale`, is held constant. The norm is then linear and has the epsilon rule (AttnLRP
    proposition 3.4, Close Look C.5).
    """

    def rule(relevance: Tensor, x: Tensor, y: Tensor, scale: Tensor) -> tuple[Tensor]:
        share = scale * relevance / stabilised(y, epsilon)
        if centred:
            share = share - share.mean(-1, keepdim=True)
        return (x * share,)

    return Ruled.apply(y, rule, (x, y, scale), x)
