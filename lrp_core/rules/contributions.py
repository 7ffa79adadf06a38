"""Rules of linear layers that treat positive and negative contributions differently (AttnLRP equations 24 and 25, A.2).

A contribution of input i to output j is z_ij = w_ji x_i; the bias is one more, whose share is absorbed. What arrives
is a gradient, relevance over output, and what leaves is one, relevance over input: no rule divides by an input.
Weights [out, in] may have leading axes, one for each sample.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial

import torch
from torch import Tensor

from lrp_core.device.precision import wide_dtype
from lrp_core.rules.records import TRUE_LINEAR, LinearRule


@lru_cache
def gamma_rule(gamma: float) -> LinearRule:
    """AttnLRP equation 24. At 0 it is the epsilon rule, which is the true gradient."""
    if gamma == 0:
        return TRUE_LINEAR
    return LinearRule(f"gamma {gamma:g}", partial(_gamma, gamma=gamma), reads_sizes=True)


@lru_cache
def alpha_beta_rule(alpha: float) -> LinearRule:
    """alpha times the shares of positive contributions minus alpha - 1 times those of negative ones (AttnLRP A.2)."""
    return LinearRule(f"alpha_beta {alpha:g}", partial(_alpha_beta, alpha=alpha))


def _gamma(
    dy: Tensor, x: Tensor, y: Tensor, weight: Tensor, bias: Tensor | None, sizes: Tensor | None = None, *, gamma: float
) -> Tensor:
    """In three products, with h = gamma / 2 and s the sign of y (0 counts as negative).

    With z+ and z- the sums of contributions of either sign, bias included, y + gamma z+ = (1 + h) y + h v, where
    v = |W||x| + |b| is the sum of their sizes, and y + gamma z- = (1 + h) y - h v. So the denominator is s((1 + h)|y| +
    h v), never smaller than y, and needs no stabiliser. With r = R / denominator,
    R_i = x_i ((1 + h) W^T r)_i + h |x_i| (|W|^T s r)_i.

    Beside the products each pass over the numbers counts, and each new tensor: what is done with is written over.
    """
    half = gamma / 2
    sizes = weight.abs() if sizes is None else sizes
    of_inputs, of_outputs = x.abs(), y.abs()
    denominator = of_inputs @ sizes.mT
    if bias is not None:
        denominator.add_(bias.abs())
    denominator.mul_(half).add_(of_outputs, alpha=1 + half)
    signed = torch.eq(denominator, 0, out=torch.empty_like(denominator))  # then y is 0, and 0 whatever divides it
    denominator.add_(signed)
    torch.mul(dy, y, out=signed).div_(denominator)
    share = of_outputs.mul_(dy).div_(denominator)
    return (share @ weight).mul_(1 + half).addcmul_(torch.sign(x, out=of_inputs), signed @ sizes, value=half)


def _zplus(dy: Tensor, x: Tensor, y: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """R_i = sum_j z_ij^+ / z_j^+ R_j (equation 25). Outputs without a positive contribution pass nothing on."""
    up, down = weight.clamp_min(0), weight.clamp_max(0)
    total = x.clamp_min(0) @ up.mT + x.clamp_max(0) @ down.mT
    share = _over(dy * y, total if bias is None else total + bias.clamp_min(0))
    return _by_sign(x, share @ up, share @ down)


ZPLUS = LinearRule("zplus", _zplus)


def _alpha_beta(dy: Tensor, x: Tensor, y: Tensor, weight: Tensor, bias: Tensor | None, *, alpha: float) -> Tensor:
    """R_i = sum_j [alpha z_ij^+ / z_j^+ - (alpha - 1) z_ij^- / z_j^-] R_j."""
    negative = torch.zeros_like(x)
    if alpha > 1:  # z- is z+ of the layer with its sign reversed
        reversed_bias = None if bias is None else -bias
        negative = _zplus(-dy, x, -y, -weight, reversed_bias)
    return alpha * _zplus(dy, x, y, weight, bias) - (alpha - 1) * negative


def _over(relevance: Tensor, total: Tensor) -> Tensor:
    """relevance / total, 0 where the total vanishes: then so do all contributions."""
    least = torch.finfo(wide_dtype(total.dtype)).tiny ** 0.5
    gone = total.abs() <= least
    return torch.where(gone, 0, relevance / torch.where(gone, 1, total))


def _by_sign(x: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
    """`positive` where x is, `negative` where x is; an input of 0 contributes nothing."""
    return torch.where(x > 0, positive, torch.where(x < 0, negative, 0))


#: The rules of linear layers by the names of a composite: as they are, or as functions of their number.
LINEAR_RULES: dict[str, LinearRule | Callable[..., LinearRule]] = {
    "epsilon": TRUE_LINEAR,
    "gamma": gamma_rule,
    "zplus": ZPLUS,
    "alpha_beta": alpha_beta_rule,
}
