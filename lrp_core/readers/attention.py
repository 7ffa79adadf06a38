"""Functions around the attention kernels of a model, through transformers' attention interface.

For each of transformers' attention implementations X, an implementation `closelook_X` is registered, with X's mask. It
runs X's kernel, or the function that `around_attention` has set for this attention module. Other models in the process
are not affected.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PretrainedConfig

from closelook.lrp_core.parts.layers import check_unaltered
from closelook.lrp_core.readers.own_kernels import STAND_INS, Attended, Kernel
from closelook.lrp_core.records.capabilities import ATTENTION
from closelook.lrp_core.records.types import UserError
from closelook.lrp_core.views.view import ModelView

Around = Callable[..., Attended]  # of (kernel, module, q, k, v, mask, **options)
ReadWeights = Callable[[int, Tensor, Tensor | None], None]  # of a layer, its weights [B, H, T, T] and its mask

_PREFIX = "closelook_"
_STOCK = ("eager", "sdpa", "flash_attention_2", "flash_attention_3", "flash_attention_4", "flex_attention")
_around: WeakKeyDictionary[nn.Module, Around] = WeakKeyDictionary()


def _twin(stock: str) -> Kernel:
    """The kernel of `closelook_STOCK`: it calls the function set around this module, else the stock kernel."""

    def attend(module: nn.Module, *tensors: Any, **options: Any) -> Attended:
        kernel = _kernel(stock, module)
        if module not in _around:
            return kernel(module, *tensors, **options)
        return _around[module](kernel, module, *tensors, **options)

    return attend


def _kernel(stock: str, module: nn.Module) -> Kernel:
    """The kernel of transformers' implementation `stock` for an attention module."""
    if stock == "eager":  # every modelling file has an eager kernel of its own
        return sys.modules[type(module).__module__].eager_attention_forward
    return AttentionInterface()[stock]


for _name in _STOCK:
    AttentionInterface.register(_PREFIX + _name, _twin(_name))
    AttentionMaskInterface.register(_PREFIX + _name, AttentionMaskInterface()[_name])


def _readers(model: nn.Module) -> dict[Any, PretrainedConfig]:
    """All modules that have a config, where attention modules read the implementation, with that config."""
    configs = {module: vars(module).get("config") for module in model.modules()}
    return {module: config for module, config in configs.items() if isinstance(config, PretrainedConfig)}


@contextmanager
def _own_kernels(view: ModelView, around: Mapping[nn.Module, Around]) -> Iterator[None]:
    """Inside, `around` also works for modules that call a kernel of their own, not through transformers' interface."""
    name = view.family.own_kernel
    if name is None:
        yield
        return
    outer = {module: vars(module).get(name) for module in around}
    for module, put in around.items():
        setattr(module, name, partial(STAND_INS[name], getattr(type(module), name), put, module))
    try:
        yield
    finally:
        for module, previous in outer.items():
            delattr(module, name)
            if previous is not None:
                setattr(module, name, previous)


@contextmanager
def around_attention(view: ModelView, around: Mapping[nn.Module, Around], stock: str | None = None) -> Iterator[None]:
    """Inside, each attention module in `around` calls its function in place of the kernel.

    The function is called as `function(kernel, module, query, key, value, mask, **options)`. `stock` is the
    implementation whose kernel it gets (default: the model's). Modules read the implementation from copies of their
    configs, since other models may share the originals. Raises UserError for an implementation that is not supported,
    and UnsupportedMethod for an attention module that was altered.
    Nothing happens for a family without the capability ATTENTION. An empty `around` changes no attention: a method then
    runs the same kernels, after the same check, as methods that change it.
    """
    if ATTENTION not in view.family.capabilities:
        yield
        return
    config = view.config
    stock = stock or config._attn_implementation.removeprefix(_PREFIX)
    if stock not in _STOCK:
        known = " or ".join(_STOCK)
        raise UserError(f"attention implementation {stock!r} is not supported; load the model with {known}")
    check_unaltered(around)
    outer = {module: _around.get(module) for module in around}
    readers = _readers(view.model)
    copies = {id(read): copy.copy(read) for read in readers.values()}
    for copied in copies.values():
        copied._attn_implementation = _PREFIX + stock
    try:
        _around.update(around)
        for module, read in readers.items():
            module.config = copies[id(read)]
        with _own_kernels(view, around):
            yield
    finally:
        for module, read in readers.items():
            module.config = read
        for module, previous in outer.items():
            if previous is None:
                del _around[module]
            else:
                _around[module] = previous


def attend_eagerly(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    *,
    softmax: Callable[[Tensor, Tensor | None], Tensor],
    cap: Callable[[Tensor, Tensor], Tensor] = lambda scores, capped: capped,
    scaling: float | None = None,
    softcap: float | None = None,
    position_bias: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, Tensor]:
    """Eager attention with another softmax: `softmax(scores, mask)` gives the weights, both [B, H, T, T].

    From queries [B, H, T, K], keys and values [B, G, T, K] to context [B, T, H, K] and weights. If the model has a
    `softcap`, `cap(scores, capped)` gives the scores after it. `position_bias` [1, H, T, T] is added to the scores.
    """
    groups = query.shape[1] // key.shape[1]
    if groups > 1:
        key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    scores = query @ key.transpose(-1, -2) * (query.shape[-1] ** -0.5 if scaling is None else scaling)
    if softcap is not None:
        scores = cap(scores, softcap * torch.tanh(scores / softcap))
    weights = softmax(scores if position_bias is None else scores + position_bias, mask)
    return (weights @ value).transpose(1, 2), weights


@contextmanager
def weights_read(view: ModelView, read: ReadWeights) -> Iterator[None]:
    """Inside, forwards run eager attention and call `read(layer, weights, mask)` for each of `view.attentions`.

    `layer` is its index, `weights` are [B, H, queries, keys], `mask` is additive [B, 1, queries, keys] or None.
    """

    def attend(kernel: Kernel, module: nn.Module, *tensors: Any, layer: int, **options: Any) -> Attended:
        context, weights = kernel(module, *tensors, **options)
        assert weights is not None  # the eager kernel returns them
        read(layer, weights, tensors[3])  # query, key, value, mask
        return context, weights

    around = {attended.attention: partial(attend, layer=layer) for layer, attended in enumerate(view.attentions)}
    with around_attention(view, around, stock="eager"):
        yield
