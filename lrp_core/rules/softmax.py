"""The softmax of attention: by default its rule is its true gradient (AttnLRP proposition 3.1; Close Look C.6), and any
kernel computes it. Another rule needs the scores, hence a kernel that shows them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lrp_core.device.precision import wide, wide_dtype
from lrp_core.rules.activation import activate, soft_cap
from lrp_core.rules.records import TRUE_SOFTMAX, SoftmaxRule
from lrp_core.rules.switch import Ruled, Switch

_TINY = 1e-6  # keeps scores away from 0 where rules divide by them
_IN_CACHE = 100_000  # numbers of a matrix that a few of fit into a core's cache
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
    weights = _softmax(scores if position_bias is None else scores + position_bias, mask, switch)
    return (weights @ value).transpose(1, 2), weights


def _softmax(scores: Tensor, mask: Tensor | None, switch: Switch) -> Tensor:
    """Softmax of scores [..., T] plus `mask`, in float32 at least, with the gradient of the composite in force."""
    masked = scores.detach() if mask is None else scores.detach() + mask
    weights = masked.softmax(-1, dtype=wide_dtype(scores.dtype)).to(scores.dtype)
    hidden = None if mask is None else mask < _HIDDEN

    def gradient(ds: Tensor, scores: Tensor, weights: Tensor) -> tuple[Tensor]:
        rule = switch.current.softmax
        if rule.backward is None:
            return (weights * (ds - (ds * weights).sum(-1, keepdim=True)),)
        if hidden is not None:
            scores = scores.masked_fill(hidden, 0)
        return (rule.backward(ds, scores, weights, hidden),)

    return Ruled.apply(weights, gradient, (scores, weights), scores)


# rules beside the true gradient


def _constant(ds: Tensor, x: Tensor, s: Tensor, hidden: Tensor | None) -> Tensor:
    """No relevance goes through (CP-LRP, Ali et al. 2022)."""
    return torch.zeros_like(ds)


def _zplus(ds: Tensor, x: Tensor, s: Tensor, hidden: Tensor | None) -> Tensor:
    """The positive ones share of the contributions s_j (delta_ij - s_i) x_i of the softmax's linear part (AttnLRP A.2).

    With Z_j = sum_{i != j} s_i (-x_i)^+ + (1 - s_j) x_j^+ and q_j = R_j / Z_j, R_i is s_i (-x_i)^+ sum_{j != i} q_j +
    (1 - s_i) x_i^+ q_i. Sums leave their own term out rather than subtract it, 1 - s_i among them: where s_i is near 1
    nothing would be left of the others. Conserves what comes from outputs with a positive contribution; others, such as
    one with a negative score whose neighbours' are positive, give nothing.
    """
    relevance = ds.new_empty(ds.shape)
    whole = (ds, x, s, relevance)
    rows = ds[..., 0].numel()
    size = min(rows, max(1, _IN_CACHE // ds.shape[-1])) if ds.device.type == "cpu" else rows
    parts = (tensor.flatten(0, -2).split(size) for tensor in whole)
    for relevances, scores, weights, out in zip(*parts, strict=True):
        out.copy_(_zplus_of_rows(relevances, scores, weights))
    return relevance


def _zplus_of_rows(ds: Tensor, x: Tensor, s: Tensor) -> Tensor:
    """The rule on rows [N, T]. Numbers stand in for truth values: choosing by those is ten times as slow on a CPU."""
    relevances, x, s = wide(ds), wide(x), wide(s)
    rest = _sum_of_others(s)
    total = _sum_of_others(x.clamp_max(0).mul_(s)).neg_().addcmul_(rest, x.clamp_min(0))
    q = (relevances * s).div_(
        total.clamp_min_(torch.finfo(x.dtype).tiny ** 0.5)
    )  # contributions vanish with their total
    others = _sum_of_others(q).mul_(s)
    positive = rest.mul_(q).mul_(torch.gt(x, 0, out=q))
    return positive.addcmul_(others, torch.lt(x, 0, out=q), value=-1)


def _sum_of_others(terms: Tensor) -> Tensor:
    """The sum of all terms [..., T] but the own.

    With m the largest by size and r the sum of all but one m, it is (m - own) + r: nothing is lost to a sum that one
    term dominates.
    """
    low, high = terms.amin(-1, keepdim=True), terms.amax(-1, keepdim=True)
    largest = torch.where(high >= -low, high, low)
    is_largest = torch.eq(terms, largest, out=torch.empty_like(terms))
    beyond = is_largest.sum(-1, keepdim=True) - 1
    rest = is_largest.mul_(-largest).add_(terms).sum(-1, keepdim=True).add_(beyond * largest)
    return torch.sub(largest, terms, out=is_largest).add_(rest)


def _identity(ds: Tensor, x: Tensor, s: Tensor, hidden: Tensor | None) -> Tensor:
    """R_i = R_i, though softmax is none (Ding et al. 2017): divided by scores near 0 it explodes."""
    relevance = wide(ds * s) / _stabilised(wide(x))
    return (relevance if hidden is None else relevance.masked_fill(hidden, 0)).to(ds.dtype)


def _distributed_bias(ds: Tensor, x: Tensor, s: Tensor, hidden: Tensor | None) -> Tensor:
    """The bias of the softmax's linear part in equal shares for all N visible scores (Voita et al. 2021).

    R_i = x_i (R_i - s_i sum_j R_j) + 1/N sum_j R_j (1 - x_j + sum_k s_k x_k): conserves, and explodes at the next rule.
    """
    x, s = wide(x), wide(s)
    relevance = wide(ds) * s
    bias = (relevance * (1 - x + (s * x).sum(-1, keepdim=True))).sum(-1, keepdim=True)
    count = x.shape[-1] if hidden is None else (~hidden).sum(-1, keepdim=True).clamp_min(1)
    shared = relevance - s * relevance.sum(-1, keepdim=True) + bias / count / _stabilised(x)
    return (shared if hidden is None else shared.masked_fill(hidden, 0)).to(ds.dtype)


def _stabilised(x: Tensor) -> Tensor:
    return torch.where(x < 0, x - _TINY, x + _TINY)


SOFTMAX_RULES = {
    "epsilon": TRUE_SOFTMAX,
    "zplus": SoftmaxRule("zplus", _zplus),
    "constant": SoftmaxRule("constant", _constant),
    "identity": SoftmaxRule("identity", _identity),
    "distributed_bias": SoftmaxRule("distributed bias", _distributed_bias),
}
