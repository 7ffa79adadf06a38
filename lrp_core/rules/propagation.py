"""Propagation rules of AttnLRP as autograd functions whose backward takes relevance to relevance."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from lrp_core.device.expert_rows import ExpertRows
from lrp_core.device.precision import wide
from lrp_core.rules.switch import Ruled


def stabilised(z: Tensor, epsilon: float) -> Tensor:
    """z + epsilon * sign(z), with sign(0) = 1: never zero."""
    return torch.where(z < 0, z - epsilon, z + epsilon)


def linear_rule(x: Tensor, weight: Tensor, bias: Tensor | None = None, *, epsilon: float) -> Tensor:
    """x [..., I], weight [O, I], bias [O] to [..., O]. The graph keeps a half-precision weight as it is.

    R_i = sum_j z_i w_ij R_j / z_j; biases keep their share (AttnLRP equation 8, Close Look equation 1).
    """

    def rule(relevance: Tensor, x: Tensor, weight: Tensor, y: Tensor) -> tuple[Tensor]:
        return (x * ((relevance / stabilised(y, epsilon)) @ wide(weight)),)

    with torch.no_grad():
        y = torch.nn.functional.linear(x, wide(weight), None if bias is None else wide(bias))
    return Ruled.apply(y, rule, (x, weight, y), x)


def linear_of_experts_rule(x: Tensor, weight: Tensor, rows: ExpertRows, *, epsilon: float) -> Tensor:
    """Rows x [S, I], in the order of experts, and their weight [E, O, I] to [S, O]; as `linear_rule` without bias."""

    def rule(relevance: Tensor, x: Tensor, weight: Tensor, y: Tensor) -> tuple[Tensor]:
        return (x * rows.multiplied(relevance / stabilised(y, epsilon), weight.mT),)

    with torch.no_grad():
        y = rows.multiplied(x, weight)
    return Ruled.apply(y, rule, (x, weight, y), x)


def add_rule(a: Any, b: Any, *, epsilon: float) -> Tensor:
    """Two tracked tensors share relevance in proportion to their value.

    A constant (a position embedding) leaves all to the other: it is part of the input.
    """
    if not (_tracked(a) and _tracked(b)):
        return torch.add(a, b) if isinstance(a, Tensor) else torch.add(b, a)

    def rule(relevance: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        share = relevance / stabilised(a + b, epsilon)
        return a * share, b * share

    return Ruled.apply(a.detach() + b.detach(), rule, (a, b), a, b)


def product_rule(a: Any, b: Any) -> Tensor:
    """Two tracked tensors have half each (AttnLRP proposition 3.2); a constant factor leaves all to the other."""
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
    return isinstance(x, Tensor) and x.requires_grad


def identity_rule(x: Tensor, y: Tensor) -> Tensor:
    """The value y, computed elementwise from x; relevance goes to x as it is (AttnLRP equation 9)."""
    return Ruled.apply(y, lambda relevance: (relevance,), (), x)


def matmul_rule(a: Tensor, v: Tensor, epsilon: float) -> Tensor:
    """[..., M, N] times [..., N, P].

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
    """The sigmoid is the softmax over x and 0."""
    return softmax_rule(torch.stack([x, torch.zeros_like(x)], -1), None)[..., 0]


def routing_rule(x: Tensor, weights: Tensor, route: Callable[[Tensor], Tensor], epsilon: float) -> Tensor:
    """The weights [N, k] that `route` gives experts of states x [N, D].

    R_x = x J^T (R / w): gradient x input of linear layer, softmax, choice and renormalisation, in turn.
    """

    def rule(relevance: Tensor, x: Tensor, weights: Tensor) -> tuple[Tensor]:
        with torch.enable_grad():
            leaf = x.detach().requires_grad_()
            (gradient,) = torch.autograd.grad(route(leaf), leaf, relevance / stabilised(weights, epsilon))
        return (x * gradient,)

    weights = weights.detach()
    return Ruled.apply(weights.clone(), rule, (x, weights), x)


def norm_rule(x: Tensor, y: Tensor, scale: Tensor, centred: bool, epsilon: float) -> Tensor:
    """The value y [..., D] of a norm that multiplies x, centred or not, by `scale` [..., D].

    With constant standard deviation it is linear: the epsilon rule (AttnLRP proposition 3.4, Close Look C.5).
    """

    def rule(relevance: Tensor, x: Tensor, y: Tensor, scale: Tensor) -> tuple[Tensor]:
        share = scale * relevance / stabilised(y, epsilon)
        if centred:
            share = share - share.mean(-1, keepdim=True)
        return (x * share,)

    return Ruled.apply(y, rule, (x, y, scale), x)
