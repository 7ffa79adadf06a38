"""The softmax of attention: by default its rule is its true gradient (AttnLRP proposition 3.1; Close Look C.6), and any
kernel computes it. Another rule needs the scores, hence a kernel that shows them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd import Function

from lrp_core.rules.activation import activate, soft_cap

if TYPE_CHECKING:
    from lrp_core.rules.switch import Switch


@dataclass(frozen=True)
class SoftmaxRule:
    """`backward(ds, x, s, hidden)` is the gradient at scores x [..., T] that the rule makes of ds at s = softmax(x).

    Scores are scaled, and 0 where `hidden` (None: nowhere) says that they are masked. Without a function it is the true
    gradient, which costs nothing.
    """

    name: str
    backward: Callable[[Tensor, Tensor, Tensor, Tensor | None], Tensor] | None = None


TRUE_GRADIENT = SoftmaxRule("true gradient")
_HIDDEN = -1e4  # masks add the least number of some precision, of which float16's is the largest


def attend_openly(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    switch: Switch,
    *,
    scaling: float | None = None,
    softcap: float | None = None,
    position_bias: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, Tensor]:
    """Attention as eager kernels compute it, the gradient of the softmax that of the composite in force.

    Queries [B, H, T, K], keys and values [B, G, T, K], `mask` [B, 1, T, T] and `position_bias` [1, H, T, T] what is
    added to the scores; returns context [B, T, H, K] and weights [B, H, T, T]. Scores are capped at `softcap`, with the
    rule of activations.
    """
    groups = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    scores = query @ key.transpose(-1, -2) * (query.shape[-1] ** -0.5 if scaling is None else scaling)
    if softcap is not None:
        scores = activate(scores, softcap * torch.tanh(scores / softcap), soft_cap(softcap), False, switch)
    weights = Softmax.apply(scores if position_bias is None else scores + position_bias, mask, switch)
    return (weights @ value).transpose(1, 2), weights


class Softmax(Function):
    """Softmax of scores [..., T] plus `mask`, in float32 at least."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, mask: Tensor | None, switch: Switch) -> Tensor:
        masked = scores if mask is None else scores + mask
        weights = masked.softmax(-1, dtype=torch.promote_types(scores.dtype, torch.float32)).to(scores.dtype)
        ctx.switch = switch
        ctx.hidden = None if mask is None else mask < _HIDDEN
        ctx.save_for_backward(scores, weights)
        return weights

    @staticmethod
    def backward(ctx: Any, ds: Tensor) -> tuple[Tensor, None, None]:
        scores, weights = ctx.saved_tensors
        rule = ctx.switch.current.softmax
        if rule.backward is None:
            return weights * (ds - (ds * weights).sum(-1, keepdim=True)), None, None
        if ctx.hidden is not None:
            scores = scores.masked_fill(ctx.hidden, 0)
        return rule.backward(ds, scores, weights, ctx.hidden), None, None
