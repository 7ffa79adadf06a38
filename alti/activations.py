"""Activations g as factors: g(z)/z in closed form, so that zero and half precision need no care."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from closelook.lrp_core.records.types import UnsupportedModel

_SQRT_HALF = 0.5**0.5
_SQRT_8_OVER_PI = (8 / torch.pi) ** 0.5


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


#: The ratio g(z)/z by transformers' name of the activation (`transformers.activations.ACT2FN`).
RATIOS: dict[str, Callable[[Tensor], Tensor]] = {
    **dict.fromkeys(("gelu", "gelu_python"), _normal_cdf),
    **dict.fromkeys(("gelu_new", "gelu_fast", "gelu_accurate"), _tanh_cdf),
    **dict.fromkeys(("gelu_pytorch_tanh", "gelu_python_tanh"), _tanh_cdf),
    **dict.fromkeys(("silu", "swish"), torch.sigmoid),
    "relu": _is_positive,
    "relu2": torch.relu,
    "tanh": _tanh_ratio,
}


def ratio_of(name: str) -> Callable[[Tensor], Tensor]:
    """The ratio of the activation that transformers calls `name`. Raises UnsupportedModel if it has no closed form."""
    if name not in RATIOS:
        raise UnsupportedModel(f"DecompX knows no factor of the activation {name!r}; supported: {', '.join(RATIOS)}")
    return RATIOS[name]
