"""Norms with a constant standard deviation (Ali et al. 2022; Close Look C.5; AttnLRP proposition 3.4).

With it the norm is linear, and relevance follows the rule of linear layers. The norm's eps stays inside the root.
"""

from __future__ import annotations

import torch
from torch import Tensor

from closelook.lrp_core.device.precision import wide_dtype
from closelook.lrp_core.rules.switch import Ruled, Switch, with_value

_backward = torch.ops.aten.native_layer_norm_backward


def normalise(x: Tensor, y: Tensor, kind: str, weight: Tensor, eps: float, switch: Switch) -> Tensor:
    """The output y = norm(x) [..., D] of a "layer" or "rms" norm; its gradient at x follows the composite in force."""
    if not switch.fixed:
        ruled = _ruled_layer_norm if kind == "layer" else _ruled_rms_norm
        return ruled(x, y.detach(), weight, eps, switch)
    with torch.no_grad():
        rstd = inverse_std(x, eps) if kind == "layer" else inverse_rms(x, eps)
        rstd = _finite(rstd, x.dtype)
    if kind == "rms":
        return with_value(x * (weight * rstd), y)
    # at a constant input the standard deviation has no gradient, so the kernel's gradient is that of the linear part
    flat = torch.nn.functional.layer_norm(x - x.detach(), x.shape[-1:], weight, None, eps=1.0)
    return with_value(flat * rstd, y)  # Close Look equation 24


def _ruled_layer_norm(x: Tensor, y: Tensor, weight: Tensor, eps: float, switch: Switch) -> Tensor:
    """The output y of a LayerNorm, whose backward asks the switch for the rule in force."""
    _, mean, rstd = torch.native_layer_norm(x.detach(), x.shape[-1:], None, None, eps)  # [..., 1]

    def rule(dy: Tensor, rstd: Tensor, *of_input: Tensor) -> tuple[Tensor]:
        if switch.current.normalization.constant:
            # at x = mean the standard deviation has no gradient, so the kernel's backward is that of the linear part
            of_input = torch.zeros_like(dy), torch.zeros_like(rstd)
        x, mean = of_input
        dx, _, _ = _backward(dy, x, x.shape[-1:], mean, rstd, weight, None, (True, False, False))
        return (dx,)

    of_input = (x, mean) if switch.plain_too else ()
    return Ruled.apply(y, rule, (_finite(rstd, rstd.dtype), *of_input), x)


def _ruled_rms_norm(x: Tensor, y: Tensor, weight: Tensor, eps: float, switch: Switch) -> Tensor:
    """The output y of an RMSNorm, whose backward asks the switch for the rule in force."""

    def rule(dy: Tensor, rstd: Tensor, *of_input: Tensor) -> tuple[Tensor]:
        dx = (dy * weight).to(rstd.dtype).mul_(rstd)
        if not switch.current.normalization.constant:
            (x,) = of_input
            x = x.to(rstd.dtype)
            dx -= x * (rstd * rstd * (dx * x).mean(-1, keepdim=True))
        return (dx.to(dy.dtype),)

    rstd = inverse_rms(x.detach(), eps)  # [..., 1], float32 at least
    return Ruled.apply(y, rule, (rstd, x) if switch.plain_too else (rstd,), x)


def _finite(rstd: Tensor, dtype: torch.dtype) -> Tensor:
    """1 / standard deviation in `dtype`, at most its largest number.

    In float16 that of a nearly constant row would be infinite, and infinity times a relevance of 0 is NaN.
    """
    return rstd.clamp_max(torch.finfo(dtype).max).to(dtype)


def inverse_std(x: Tensor, eps: float) -> Tensor:
    """1 / sqrt(var(x) + eps) over the last axis, [..., 1], as the LayerNorm kernel computes it."""
    return torch.native_layer_norm(x, x.shape[-1:], None, None, eps)[2]


def inverse_rms(x: Tensor, eps: float) -> Tensor:
    """1 / sqrt(mean(x^2) + eps) over the last axis, [..., 1], in float32 at least."""
    norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=wide_dtype(x.dtype))
    return norm.square_().div_(x.shape[-1]).add_(eps).rsqrt_()
