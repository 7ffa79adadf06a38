"""Propagation rules of AttnLRP as autograd functions whose backward takes relevance to relevance."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from lrp_core.expert_rows import ExpertRows


def wide(x: Tensor) -> Tensor:
    """x in float32 at least."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def stabilised(z: Tensor, epsilon: float) -> Tensor:
    """z + epsilon * sign(z), with sign(0) = 1: never zero."""
    return torch.where(z < 0, z - epsilon, z + epsilon)


class _Linear(Function):
    """R_i = sum_j z_i w_ij R_j / z_j; biases keep their share (AttnLRP equation 8, Close Look equation 1)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, epsilon: float) -> Tensor:
        y = torch.nn.functional.linear(x, wide(weight), None if bias is None else wide(bias))
        ctx.epsilon = epsilon
        ctx.save_for_backward(x, weight, y)
        return y

    @staticmethod
    def backward(ctx: Any, relevance: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, y = ctx.saved_tensors
        return x * ((relevance / stabilised(y, ctx.epsilon)) @ wide(weight)), None, None, None


def linear_rule(x: Tensor, weight: Tensor, bias: Tensor | None = None, *, epsilon: float) -> Tensor:
    """x [..., I], weight [O, I], bias [O] to [..., O]. The graph keeps a half-precision weight as it is."""
    return _Linear.apply(x, weight, bias, epsilon)


class _LinearOfExperts(Function):
    """`_Linear` without bias, each row with the weight of its expert."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, rows: ExpertRows, epsilon: float) -> Tensor:
        y = rows.multiplied(x, weight)
        ctx.rows, ctx.epsilon = rows, epsilon
        ctx.save_for_backward(x, weight, y)
        return y

    @staticmethod
    def backward(ctx: Any, relevance: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, y = ctx.saved_tensors
        return x * ctx.rows.multiplied(relevance / stabilised(y, ctx.epsilon), weight.mT), None, None, None


def linear_of_experts_rule(x: Tensor, weight: Tensor, rows: ExpertRows, *, epsilon: float) -> Tensor:
    """Rows x [S, I], in the order of experts, and their weight [E, O, I] to [S, O]."""
    return _LinearOfExperts.apply(x, weight, rows, epsilon)


class _Add(Function):
    """Summands take relevance in proportion to their value."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, epsilon: float) -> Tensor:
        ctx.epsilon = epsilon
        ctx.save_for_backward(a, b)
        return a + b

    @staticmethod
    def backward(ctx: Any, relevance: Tensor) -> tuple[Tensor, Tensor, None]:
        a, b = ctx.saved_tensors
        share = relevance / stabilised(a + b, ctx.epsilon)
        return a * share, b * share, None


def add_rule(a: Any, b: Any, *, epsilon: float) -> Tensor:
    """Two tracked tensors share; a constant (a position embedding) leaves all to the other: it is part of the input."""
    if all(isinstance(x, Tensor) and x.requires_grad for x in (a, b)):
        return _Add.apply(a, b, epsilon)
    return torch.add(a, b) if isinstance(a, Tensor) else torch.add(b, a)


class _Product(Function):
    """R_a = R_b = R / 2 (AttnLRP proposition 3.2)."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        ctx.shapes = a.shape, b.shape
        return a * b

    @staticmethod
    def backward(ctx: Any, relevance: Tensor) -> tuple[Tensor, ...]:
        half = relevance * 0.5
        return tuple(half.sum_to_size(shape) for shape in ctx.shapes)


def product_rule(a: Any, b: Any) -> Tensor:
    """Two tracked tensors share; a constant factor leaves all to the other."""
    a_tracked, b_tracked = (isinstance(x, Tensor) and x.requires_grad for x in (a, b))
    if a_tracked and b_tracked:
        return _Product.apply(a, b)
    return identity_rule(a, a.detach() * b) if a_tracked else identity_rule(b, b.detach() * a)


class _Identity(Function):
    """R_x = R_y (AttnLRP equation 9)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
        return y

    @staticmethod
    def backward(ctx: Any, relevance: Tensor) -> tuple[Tensor, None]:
        return relevance, None


def identity_rule(x: Tensor, y: Tensor) -> Tensor:
    """The value y, computed elementwise from x; relevance goes to x as it is."""
    return _Identity.apply(x, y)


class _MatMul(Function):
    """R_A = A * (R / 2O) V^T and R_V = V * A^T (R / 2O) (AttnLRP proposition 3.3)."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, v: Tensor, epsilon: float) -> Tensor:
        out = a @ v
        ctx.epsilon = epsilon
        ctx.save_for_backward(a, v, out)
        return out

    @staticmethod
    def backward(ctx: Any, relevance: Tensor) -> tuple[Tensor, Tensor, None]:
        a, v, out = ctx.saved_tensors
        share = relevance / stabilised(2 * out, ctx.epsilon)
        return a * (share @ v.transpose(-1, -2)), v * (a.transpose(-1, -2) @ share), None


def matmul_rule(a: Tensor, v: Tensor, epsilon: float) -> Tensor:
    """[..., M, N] times [..., N, P]."""
    return _MatMul.apply(a, v, epsilon)


class _Softmax(Function):
    """R_i = x_i (R_i - s_i sum_j R_j) (AttnLRP proposition 3.1, equation 13)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, mask: Tensor | None) -> Tensor:
        s = torch.softmax(x if mask is None else x + mask, dim=-1)
        ctx.save_for_backward(x, s)
        return s

    @staticmethod
    def backward(ctx: Any, relevance: Tensor) -> tuple[Tensor, None]:
        x, s = ctx.saved_tensors
        return x * (relevance - s * relevance.sum(-1, keepdim=True)), None


def softmax_rule(x: Tensor, mask: Tensor | None) -> Tensor:
    """Softmax over the last axis of x plus an additive mask, which is a constant."""
    return _Softmax.apply(x, mask)


class _Norm(Function):
    """A norm with constant standard deviation is linear: the epsilon rule (AttnLRP proposition 3.4, Close Look C.5)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor, scale: Tensor, centred: bool, epsilon: float) -> Tensor:
        ctx.centred, ctx.epsilon = centred, epsilon
        ctx.save_for_backward(x, y, scale)
        return y

    @staticmethod
    def backward(ctx: Any, relevance: Tensor) -> tuple[Tensor | None, ...]:
        x, y, scale = ctx.saved_tensors
        share = scale * relevance / stabilised(y, ctx.epsilon)
        if ctx.centred:
            share = share - share.mean(-1, keepdim=True)
        return x * share, None, None, None, None


def sigmoid_rule(x: Tensor) -> Tensor:
    """The sigmoid is the softmax over x and 0."""
    return softmax_rule(torch.stack([x, torch.zeros_like(x)], -1), None)[..., 0]


class _Routing(Function):
    """R_x = x J^T (R / w): gradient x input of linear layer, softmax, choice and renormalisation, in turn."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weights: Tensor, route: Callable[[Tensor], Tensor], epsilon: float) -> Tensor:
        ctx.route, ctx.epsilon = route, epsilon
        ctx.save_for_backward(x, weights)
        return weights.clone()

    @staticmethod
    def backward(ctx: Any, relevance: Tensor) -> tuple[Tensor | None, ...]:
        x, weights = ctx.saved_tensors
        with torch.enable_grad():
            leaf = x.detach().requires_grad_()
            (gradient,) = torch.autograd.grad(ctx.route(leaf), leaf, relevance / stabilised(weights, ctx.epsilon))
        return x * gradient, None, None, None


def routing_rule(x: Tensor, weights: Tensor, route: Callable[[Tensor], Tensor], epsilon: float) -> Tensor:
    """The weights [N, k] that `route` gives experts of states x [N, D]."""
    return _Routing.apply(x, weights.detach(), route, epsilon)


def norm_rule(x: Tensor, y: Tensor, scale: Tensor, centred: bool, epsilon: float) -> Tensor:
    """The value y [..., D] of a norm that multiplies x, centred or not, by `scale` [..., D]."""
    return _Norm.apply(x, y, scale, centred, epsilon)
