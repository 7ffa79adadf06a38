"""Norms with a constant standard deviation (Ali et al. 2022; Close Look C.5; AttnLRP proposition 3.4).

With it a norm is linear, in one piece or written as several operations: a deviation is a root, a negative power, a
standard deviation or a norm of a vector. It is held constant, and may multiply or divide relevance.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from closelook.lrp_core.device.precision import wide_dtype
from closelook.lrp_core.operations.marks import DEVIATION, Mark, mark_of, marked, tensors_in
from closelook.lrp_core.operations.nodes import holds_deviations, ruled, scaled
from closelook.lrp_core.operations.scope import Scope
from closelook.lrp_core.operations.table import rule

_backward = torch.ops.aten.native_layer_norm_backward


@rule("rsqrt", "sqrt", "reciprocal", "var", "std", "norm", "vector_norm", "linalg_vector_norm")
def deviation(mode: Scope, func: Any, args: Any, kwargs: Any) -> Tensor:
    """A deviation, or its inverse."""
    held = mode.plan.each(holds_deviations)
    with torch.set_grad_enabled(not all(held)):
        y = func(*args, **kwargs)
    constant = next((mark_of(x).constant for x in tensors_in(args) if mark_of(x).constant), DEVIATION)
    return marked(scaled(y, [0 if one else 1 for one in held], mode.plan), Mark(constant))


@rule("layer_norm", carries=("input",))
def layer_norm(mode: Scope, func: Any, args: Any, kwargs: Any) -> Tensor:
    """LayerNorm in one piece."""
    x, shape, weight, bias, eps = arguments(args, kwargs, ("input", "normalized_shape", "weight", "bias", "eps"))
    mode.refuse_constant(func, x)
    plan, eps = mode.plan, 1e-5 if eps is None else eps
    shape, dtype = list(shape), x.dtype
    held = plan.each(holds_deviations)
    y, mean, rstd = torch.native_layer_norm(x.detach(), shape, weight, bias, eps)
    if weight is not None and weight.dtype != x.dtype:  # under autocast
        weight = weight.to(x.dtype)
    rstd = rstd.clamp_max(torch.finfo(rstd.dtype).max)  # in float16 that of a constant row would be infinite

    def gradient(dy: Tensor, rstd: Tensor, *of_input: Tensor) -> tuple[Tensor]:
        dy = dy.to(dtype)
        if held[plan.current]:
            # at x = mean the standard deviation has no gradient, so the kernel's backward is that of the linear part
            of_input = torch.zeros_like(dy), torch.zeros_like(rstd)
        dx, _, _ = _backward(dy, of_input[0], shape, of_input[1], rstd, weight, None, (True, False, False))
        return (dx,)

    return mode.roots.projected(x, ruled(y, gradient, (rstd,) if all(held) else (rstd, x.detach(), mean), x))


@rule("rms_norm", carries=("input",))
def rms_norm(mode: Scope, func: Any, args: Any, kwargs: Any) -> Tensor:
    """RMSNorm in one piece."""
    x, shape, weight, eps = arguments(args, kwargs, ("input", "normalized_shape", "weight", "eps"))
    mode.refuse_constant(func, x)
    y = func(*args, **kwargs)
    plan, eps = mode.plan, torch.finfo(x.dtype).eps if eps is None else eps
    held = plan.each(holds_deviations)
    axes = tuple(range(-len(shape), 0))
    dtype, precise = x.dtype, wide_dtype(x.dtype)
    squares = torch.linalg.vector_norm(x.detach(), dim=axes, keepdim=True, dtype=precise).square_()
    rstd = squares.div_(x[(0,) * (x.dim() - len(shape))].numel()).add_(eps).rsqrt_()

    def gradient(dy: Tensor, rstd: Tensor, *of_input: Tensor) -> tuple[Tensor]:
        dx = (dy if weight is None else dy * weight).to(precise) * rstd
        if not held[plan.current]:
            wide = of_input[0].to(precise)
            dx = dx - wide * (rstd * rstd * (dx * wide).mean(axes, keepdim=True))
        return (dx.to(dtype),)

    return ruled(y, gradient, (rstd,) if all(held) else (rstd, x.detach()), x)


def arguments(args: Any, kwargs: Any, names: tuple[str, ...]) -> list[Any]:
    """The values of a call's arguments in the order of `names`; None for those that are left out."""
    values = dict(zip(names, args, strict=False)) | kwargs
    return [values.get(name) for name in names]
