"""Stand-ins for the methods of attention modules that hold a kernel of their own, outside of transformers' interface.

A stand-in `(original, around, module, *arguments)` calls `around(kernel, module, query, key, value, mask, scaling=...)`
once and returns what `original`, the method of the module's class, would return. The kernel that it hands to `around`
takes queries, keys and values [B, H, T, K] and a mask, and returns context [B, T, H, K] and weights [B, H, T, T].
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Attended = tuple[Tensor, Tensor | None]  # context [B, T, H, K], and weights [B, H, T, T] of kernels that form them
Kernel = Callable[..., Attended]  # of (module, q, k, v, mask, **options)


def _windowed(
    original: Kernel, around: Kernel, module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None
) -> Attended:
    """Stand-in for GPT-Neo's `_attn`: context [B, H, T, K] and weights [B, H, T, T].

    The original applies the module's window (causal or local) itself and adds the model's mask. So `around` gets a mask
    that includes the window, while the kernel ignores its mask and passes the model's own mask to the original.
    """
    length = key.shape[-2]
    seen = module.bias[:, :, length - query.shape[-2] : length, :length]
    least = torch.finfo(query.dtype).min
    added, whole = mask, seen
    if mask is not None and mask.dtype == torch.bool:  # kernels other than the eager one get such masks
        added = torch.zeros_like(mask, dtype=query.dtype).masked_fill(~mask, least)
        whole = seen & mask
    elif mask is not None:
        whole = torch.where(seen, mask, least)

    def kernel(module: Any, query: Tensor, key: Tensor, value: Tensor, *_: Any, **__: Any) -> Attended:
        context, weights = original(module, query, key, value, added)
        return context.transpose(1, 2), weights

    context, weights = around(kernel, module, query, key, value, whole, scaling=1.0)
    return context.transpose(1, 2), weights


def _whole_forward(
    original: Kernel, around: Kernel, module: Any, hidden: Tensor, attention_mask: Tensor | None = None, **_: Any
) -> Attended:
    """Stand-in for Megatron-BERT's `forward`: context [B, T, D] and weights [B, H, T, T].

    It repeats the operations of the original in the same order, since the kernel has no method of its own there.
    """
    by_head = (*hidden.shape[:-1], -1, module.attention_head_size)
    projections = (module.query, module.key, module.value)
    tensors = [projection(hidden).view(by_head).transpose(1, 2) for projection in projections]
    context, weights = around(_softmax_kernel, module, *tensors, attention_mask, scaling=by_head[-1] ** -0.5)
    return context.flatten(2), weights


def _softmax_kernel(module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **_: Any) -> Attended:
    """Megatron-BERT's attention, without dropout: context [B, T, H, K] and weights [B, H, T, T]."""
    scores = torch.matmul(query, key.transpose(-1, -2)) / math.sqrt(query.shape[-1])
    if mask is not None:
        scores = scores + mask
    weights = scores.softmax(dim=-1)
    return torch.matmul(weights, value).transpose(1, 2).contiguous(), weights


#: Stand-ins by the name of the method that they replace.
STAND_INS: dict[str, Callable[..., Attended]] = {"_attn": _windowed, "forward": _whole_forward}
