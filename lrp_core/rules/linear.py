"""Rules of linear layers.

By default the true gradient is the epsilon rule at epsilon 0 (Close Look C.2, AttnLRP equation 8). Other rules treat
positive and negative contributions differently (AttnLRP equations 24 and 25, A.2). The contribution of input i to
output j is z_ij = w_ji x_i; the bias is one more, whose share of relevance is lost. Rules turn a gradient dy (relevance
divided by output) into dx (relevance divided by input), without dividing by inputs. They get dy and y [..., out], x
[..., in], weight [out, in] and bias [out]; weights may have leading batch axes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial

import torch
from torch import Tensor

from closelook.lrp_core.device.precision import wide_dtype
from closelook.lrp_core.rules.records import TRUE_LINEAR, LinearRule


@lru_cache
def gamma_rule(gamma: float) -> LinearRule:
    """The gamma rule (AttnLRP equation 24). At gamma 0 it is the epsilon rule, which is the true gradient."""
    if gamma == 0:
        return TRUE_LINEAR
    return LinearRule(f"gamma {gamma:g}", partial(_gamma, gamma=gamma), reads_sizes=True)


@lru_cache
def alpha_beta_rule(alpha: float) -> LinearRule:
    """The alpha-beta rule with beta = alpha - 1 (AttnLRP A.2); see `_alpha_beta`."""
    return LinearRule(f"alpha_beta {alpha:g}", partial(_alpha_beta, alpha=alpha))


def _gamma(
    dy: Tensor, x: Tensor, y: Tensor, weight: Tensor, bias: Tensor | None, sizes: Tensor | None = None, *, gamma: float
) -> Tensor:
    """The gamma rule's gradient at x, computed with three matrix products. `sizes` is |weight| (default: computed).

    Contributions of the sign of output j weigh 1 + gamma, others 1. Let h = gamma / 2, s the sign of y (0 counts as
    negative), and z+ and z- the sums of contributions of either sign, bias included. With v = |W||x| + |b|,
    y + gamma z+ = (1 + h) y + h v and y + gamma z- = (1 + h) y - h v. So the denominator is s((1 + h)|y| + h v): it is
    never smaller than y and needs no stabiliser. With r = R / denominator,
    R_i = x_i ((1 + h) W^T r)_i + h |x_i| (|W|^T s r)_i.

    Tensors are overwritten as soon as they are no longer needed, since new memory costs time.
    """
    half = gamma / 2
    sizes = weight.abs() if sizes is None else sizes
    of_inputs, of_outputs = x.abs(), y.abs()
    denominator = of_inputs @ sizes.mT
    if bias is not None:
        denominator.add_(bias.abs())
    denominator.mul_(half).add_(of_outputs, alpha=1 + half)
    # where the denominator is 0 so is y, and 1 may divide it
    signed = torch.eq(denominator, 0, out=torch.empty_like(denominator))
    denominator.add_(signed)
    torch.mul(dy, y, out=signed).div_(denominator)
    share = of_outputs.mul_(dy).div_(denominator)
    return (share @ weight).mul_(1 + half).addcmul_(torch.sign(x, out=of_inputs), signed @ sizes, value=half)


def _zplus(dy: Tensor, x: Tensor, y: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """The z+ rule's gradient at x: R_i = sum_j z_ij^+ / z_j^+ R_j (AttnLRP equation 25).

    The relevance of outputs without a positive contribution is lost.
    """
    up, down = weight.clamp_min(0), weight.clamp_max(0)
    total = x.clamp_min(0) @ up.mT + x.clamp_max(0) @ down.mT
    share = _over(dy * y, total if bias is None else total + bias.clamp_min(0))
    return _by_sign(x, share @ up, share @ down)


ZPLUS = LinearRule("zplus", _zplus)


def _alpha_beta(dy: Tensor, x: Tensor, y: Tensor, weight: Tensor, bias: Tensor | None, *, alpha: float) -> Tensor:
    """The alpha-beta rule's gradient at x: R_i = sum_j [alpha z_ij^+ / z_j^+ - (alpha - 1) z_ij^- / z_j^-] R_j."""
    negative = torch.zeros_like(x)
    if alpha > 1:  # the negative contributions are the positive ones of the layer with reversed sign
        reversed_bias = None if bias is None else -bias
        negative = _zplus(-dy, x, -y, -weight, reversed_bias)
    return alpha * _zplus(dy, x, y, weight, bias) - (alpha - 1) * negative


def _over(relevance: Tensor, total: Tensor) -> Tensor:
    """relevance / total; 0 where the total of contributions is 0, since then every contribution is 0."""
    least = torch.finfo(wide_dtype(total.dtype)).tiny ** 0.5
    gone = total.abs() <= least
    return torch.where(gone, 0, relevance / torch.where(gone, 1, total))


def _by_sign(x: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
    """`positive` where x > 0, `negative` where x < 0, and 0 where x is 0."""
    return torch.where(x > 0, positive, torch.where(x < 0, negative, 0))


#: The rules of linear layers by their name in a composite: the rule, or a function from its number to the rule.
LINEAR_RULES: dict[str, LinearRule | Callable[..., LinearRule]] = {
    "epsilon": TRUE_LINEAR,
    "gamma": gamma_rule,
    "zplus": ZPLUS,
    "alpha_beta": alpha_beta_rule,
}
