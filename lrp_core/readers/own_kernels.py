"""Attention that transformers' interface does not reach: stand-ins for the methods of modules that hold the kernel.

A stand-in `(original, around, module, *arguments)` calls `around(kernel, module, query, key, value, mask, scaling=...)`
once and returns what `original`, the method of the module's class, would. Its kernel takes queries, keys and values
[B, H, T, K] and a mask, and gives the context [B, T, H, K] and the weights [B, H, T, T].
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Attended = tuple[Tensor, Tensor | None]
Kernel = Callable[..., Attended]


def _windowed(
    original: Kernel, around: Kernel, module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None
) -> Attended:
    """GPT-Neo's `_attn`: context [B, H, T, K] and weights. `around` reads the model's mask with the module's window."""
    length = key.shape[-2]
    seen = module.bias[:, :, length - query.shape[-2] : length, :length]
    least = torch.finfo(query.dtype).min
    added, whole = mask, seen
    if mask is not None and mask.dtype == torch.bool:  # as other kernels than the eager one read it
        added = torch.zeros_like(mask, dtype=query.dtype).masked_fill(~mask, least)
        whole = seen & mask
    elif mask is not None:
        whole = torch.where(seen, mask, least)

    def kernel(module: Any, query: Tensor, key: Tensor, value: Tensor, *_: Any, **__: Any) -> Attended:
        context, weights = original(module, query, key, value, added)
        return context.transpose(1, 2), weights

    context, weights = around(kernel, module, query, key, value, whole, scaling=1.0)
    return context.transpose(1, 2), weights


def _attended(
    original: Kernel, around: Kernel, module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None
) -> Attended:
    """The `attend` of `lrp_core.opening.torch_layers.SeparateAttention`."""

    def kernel(module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **_: Any) -> Attended:
        return original(module, query, key, value, mask)

    return around(kernel, module, query, key, value, mask, scaling=query.shape[-1] ** -0.5)


def _whole_forward(
    original: Kernel, around: Kernel, module: Any, hidden: Tensor, attention_mask: Tensor | None = None, **_: Any
) -> Attended:
    """Megatron-BERT's `forward`: context [B, T, D] and weights, by the operations of the original in their order."""
    by_head = (*hidden.shape[:-1], -1, module.attention_head_size)
    projections = (module.query, module.key, module.value)
    tensors = [projection(hidden).view(by_head).transpose(1, 2) for projection in projections]
    context, weights = around(_softmax_kernel, module, *tensors, attention_mask, scaling=by_head[-1] ** -0.5)
    return context.flatten(2), weights


def _softmax_kernel(module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **_: Any) -> Attended:
    scores = torch.matmul(query, key.transpose(-1, -2)) / math.sqrt(query.shape[-1])
    if mask is not None:
        scores = scores + mask
    weights = scores.softmax(dim=-1)
    return torch.matmul(weights, value).transpose(1, 2).contiguous(), weights


#: By the name of the method.
STAND_INS: dict[str, Callable[..., Attended]] = {"_attn": _windowed, "attend": _attended, "forward": _whole_forward}
