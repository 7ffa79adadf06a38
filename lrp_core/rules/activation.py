"""Identity rule: an activation g passes relevance through unchanged (Close Look C.3, AttnLRP equation 9).

As a gradient: dz = g(z)/z * dy. For most activations the ratio has a closed form without a division by z, so zero and
half precision need no care.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from closelook.lrp_core.device.precision import wide
from closelook.lrp_core.records.types import UnsupportedModel
from closelook.lrp_core.rules.switch import Ruled, Switch, with_value

_aten = torch.ops.aten
_SQRT_HALF = 0.5**0.5
_SQRT_8_OVER_PI = (8 / torch.pi) ** 0.5


@dataclass(frozen=True)
class Activation:
    """An activation g: `ratio(z)` is g(z)/z, and `backward(dy, z)` is g'(z) * dy. Both are elementwise."""

    ratio: Callable[[Tensor], Tensor]
    backward: Callable[[Tensor, Tensor], Tensor]


def _normal_cdf(z: Tensor) -> Tensor:
    """The ratio of GELU, z Phi(z): the normal distribution function Phi(z)."""
    return (z * _SQRT_HALF).erf_().add_(1).mul_(0.5)


def _tanh_cdf(z: Tensor) -> Tensor:
    """The ratio of GELU's tanh form: (1 + tanh(u)) / 2 = sigmoid(2u) with u = sqrt(2/pi) (z + 0.044715 z^3)."""
    return (z * z).mul_(0.044715).add_(1).mul_(z).mul_(_SQRT_8_OVER_PI).sigmoid_()


def _tanh_ratio(z: Tensor) -> Tensor:
    """The ratio of tanh, tanh(z) / z; 1 at 0."""
    return torch.where(z == 0, 1.0, torch.tanh(z) / z)


def _is_positive(z: Tensor) -> Tensor:
    """The ratio of ReLU: 1 for positive z, else 0."""
    return (z > 0).to(z.dtype)


_GELU = Activation(_normal_cdf, lambda dy, z: _aten.gelu_backward(dy, z))
_GELU_TANH = Activation(_tanh_cdf, lambda dy, z: _aten.gelu_backward(dy, z, approximate="tanh"))
_SILU = Activation(torch.sigmoid, lambda dy, z: _aten.silu_backward(dy, z))
_RELU = Activation(_is_positive, lambda dy, z: _aten.threshold_backward(dy, z, 0))
_RELU_SQUARED = Activation(torch.relu, lambda dy, z: dy * torch.relu(z) * 2)
_TANH = Activation(_tanh_ratio, lambda dy, z: _aten.tanh_backward(dy, torch.tanh(z)))

#: By transformers' name of the activation (`transformers.activations.ACT2FN`).
ACTIVATIONS = {
    "gelu": _GELU,
    "gelu_python": _GELU,
    "gelu_new": _GELU_TANH,
    "gelu_fast": _GELU_TANH,
    "gelu_accurate": _GELU_TANH,
    "gelu_pytorch_tanh": _GELU_TANH,
    "gelu_python_tanh": _GELU_TANH,
    "silu": _SILU,
    "swish": _SILU,
    "relu": _RELU,
    "relu2": _RELU_SQUARED,
    "tanh": _TANH,
}


def activation(name: str) -> Activation:
    """The activation that transformers calls `name`. Raises UnsupportedModel, listing all, if it has no rule here."""
    if name not in ACTIVATIONS:
        raise UnsupportedModel(f"no rule for the activation {name!r}; supported: {', '.join(ACTIVATIONS)}")
    return ACTIVATIONS[name]


def soft_cap(cap: float) -> Activation:
    """The soft cap c tanh(z / c) as an activation, so that it gets the activations' rule; c is `cap`."""
    return Activation(lambda z: _tanh_ratio(z / cap), lambda dy, z: _aten.tanh_backward(dy, torch.tanh(z / cap)))


def _ratio(kind: Activation, z: Tensor) -> Tensor:
    """g(z)/z in the dtype of z, computed in float32 at least."""
    return kind.ratio(wide(z)).to(z.dtype)


def activate(z: Tensor, y: Tensor, kind: Activation, gating: bool, switch: Switch) -> Tensor:
    """The value y = g(z), whose gradient at z follows the composite in force.

    `gating` says that y is the gate of a product, as in gated MLPs: rules that hold gates constant give z no gradient.
    """
    if not switch.fixed:
        kept = z if switch.plain_too else _ratio(kind, z.detach())
        rule = partial(_gradient, kind=kind, gating=gating, switch=switch)
        return Ruled.apply(y.detach(), rule, [kept], z)
    if gating and not switch.current.bilinear.serves_gate:
        return y.detach()
    return with_value(z * _ratio(kind, z.detach()), y)  # Close Look equation 8


def _gradient(dy: Tensor, kept: Tensor, kind: Activation, gating: bool, switch: Switch) -> tuple[Tensor | None]:
    """The gradient at z; None for a gate that the composite holds constant.

    `kept` is z if a composite needs the true gradient (`switch.plain_too`), else g(z)/z.
    """
    if gating and not switch.current.bilinear.serves_gate:
        return (None,)
    if not switch.current.activation.constant:
        return (kind.backward(dy, kept),)
    ratio = _ratio(kind, kept) if switch.plain_too else kept
    return (dy * ratio,)
