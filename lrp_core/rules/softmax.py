"""The softmax of attention and its rules.

By default the rule is the true gradient (AttnLRP proposition 3.1; Close Look C.6), which any kernel computes. Other
rules need the scores, so attention is computed in steps. A rule turns the gradient ds at the weights
s = softmax(x) into the gradient at the scores x, all [..., T]; R = s ds is the relevance of the weights.
"""

from __future__ import annotations

import torch
from torch import Tensor

from closelook.lrp_core.device.precision import wide
from closelook.lrp_core.rules.records import TRUE_SOFTMAX, SoftmaxRule

_TINY = 1e-6  # keeps scores away from 0 where rules divide by them
_IN_CACHE = 100_000  # numbers in a piece of rows, so that a few such pieces fit into a core's cache


def stabilised(z: Tensor, epsilon: float) -> Tensor:
    """z + epsilon * sign(z), with sign(0) = 1: never zero."""
    return torch.where(z < 0, z - epsilon, z + epsilon)


def _constant(ds: Tensor, x: Tensor, s: Tensor, hidden: Tensor | None) -> Tensor:
    """The rule that passes no relevance: weights are held constant (CP-LRP, Ali et al. 2022)."""
    return torch.zeros_like(ds)


def _zplus(ds: Tensor, x: Tensor, s: Tensor, hidden: Tensor | None) -> Tensor:
    """The z+ rule of the softmax's linear part: only positive contributions share relevance (AttnLRP A.2).

    The contribution of score i to weight j is s_j (delta_ij - s_i) x_i. With Z_j = sum_{i != j} s_i (-x_i)^+ +
    (1 - s_j) x_j^+ and q_j = R_j / Z_j, R_i is s_i (-x_i)^+ sum_{j != i} q_j + (1 - s_i) x_i^+ q_i. Sums over all
    others (1 - s_i is one) are computed without the excluded term, not by subtracting it: with s_i near 1 all digits
    would be lost. The relevance of weights without a positive contribution is lost; that of others is conserved.
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
    """`_zplus` of rows [N, T]. It multiplies by 0 or 1 in place of `torch.where`, ten times as slow on a CPU."""
    relevances, x, s = wide(ds), wide(x), wide(s)
    rest = _sum_of_others(s)
    total = _sum_of_others(x.clamp_max(0).mul_(s)).neg_().addcmul_(rest, x.clamp_min(0))
    total.clamp_min_(torch.finfo(x.dtype).tiny ** 0.5)  # contributions vanish with their total
    q = (relevances * s).div_(total)
    others = _sum_of_others(q).mul_(s)
    positive = rest.mul_(q).mul_(torch.gt(x, 0, out=q))
    return positive.addcmul_(others, torch.lt(x, 0, out=q), value=-1)


def _sum_of_others(terms: Tensor) -> Tensor:
    """For each of the terms [..., T], the sum of all other terms.

    With m the largest term by magnitude and r the sum of all terms but one m, it is computed as (m - term) + r. So no
    digits are lost if one term dominates the sum.
    """
    low, high = terms.amin(-1, keepdim=True), terms.amax(-1, keepdim=True)
    largest = torch.where(high >= -low, high, low)
    is_largest = torch.eq(terms, largest, out=torch.empty_like(terms))
    beyond = is_largest.sum(-1, keepdim=True) - 1
    rest = is_largest.mul_(-largest).add_(terms).sum(-1, keepdim=True).add_(beyond * largest)
    return torch.sub(largest, terms, out=is_largest).add_(rest)


def _identity(ds: Tensor, x: Tensor, s: Tensor, hidden: Tensor | None) -> Tensor:
    """The identity rule: score i gets the relevance of weight i (Ding et al. 2017).

    As a gradient it is divided by the score, so it explodes for scores near 0.
    """
    relevance = wide(ds * s) / stabilised(wide(x), _TINY)
    return (relevance if hidden is None else relevance.masked_fill(hidden, 0)).to(ds.dtype)


def _distributed_bias(ds: Tensor, x: Tensor, s: Tensor, hidden: Tensor | None) -> Tensor:
    """The rule that distributes the bias of the softmax's linear part equally over all N visible scores.

    R_i = x_i (R_i - s_i sum_j R_j) + 1/N sum_j R_j (1 - x_j + sum_k s_k x_k) (Voita et al. 2021). It conserves
    relevance, but as a gradient it is divided by scores, so it explodes at the next rule.
    """
    x, s = wide(x), wide(s)
    relevance = wide(ds) * s
    bias = (relevance * (1 - x + (s * x).sum(-1, keepdim=True))).sum(-1, keepdim=True)
    count = x.shape[-1] if hidden is None else (~hidden).sum(-1, keepdim=True).clamp_min(1)
    shared = relevance - s * relevance.sum(-1, keepdim=True) + bias / count / stabilised(x, _TINY)
    return (shared if hidden is None else shared.masked_fill(hidden, 0)).to(ds.dtype)


SOFTMAX_RULES = {
    "epsilon": TRUE_SOFTMAX,
    "zplus": SoftmaxRule("zplus", _zplus),
    "constant": SoftmaxRule("constant", _constant),
    "identity": SoftmaxRule("identity", _identity),
    "distributed_bias": SoftmaxRule("distributed bias", _distributed_bias),
}
