"""A hook around every attention kernel, through transformers' attention interface.

For each stock implementation X a twin `closelook_X` is registered, with X's mask. The twin runs X's own kernel, unless
something was put around it for this very attention module. Nothing else in the process notices.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PretrainedConfig

from lrp_core.readers.own_kernels import STAND_INS
from lrp_core.records.capabilities import ATTENTION
from lrp_core.records.types import UserError
from lrp_core.views.view import ModelView

Attended = tuple[Tensor, Tensor | None]  # context [B, T, H, K], and weights [B, H, T, T] of kernels that form them
Kernel = Callable[..., Attended]  # of (module, q, k, v, mask, **options)
Around = Callable[..., Attended]  # of (kernel, module, q, k, v, mask, **options)
ReadWeights = Callable[[int, Tensor, Tensor | None], None]  # of a layer, its weights [B, H, T, T] and its mask

_PREFIX = "closelook_"
_STOCK = ("eager", "sdpa", "flash_attention_2", "flash_attention_3", "flash_attention_4", "flex_attention")
_around: WeakKeyDictionary[nn.Module, Around] = WeakKeyDictionary()


def _twin(stock: str) -> Kernel:
    def attend(module: nn.Module, *tensors: Any, **options: Any) -> Attended:
        kernel = _kernel(stock, module)
        if module not in _around:
            return kernel(module, *tensors, **options)
        return _around[module](kernel, module, *tensors, **options)

    return attend


def _kernel(stock: str, module: nn.Module) -> Kernel:
    if stock == "eager":  # every modelling file has its own
        return sys.modules[type(module).__module__].eager_attention_forward
    return AttentionInterface()[stock]


for _name in _STOCK:
    AttentionInterface.register(_PREFIX + _name, _twin(_name))
    AttentionMaskInterface.register(_PREFIX + _name, AttentionMaskInterface()[_name])


def _readers(model: nn.Module) -> dict[Any, PretrainedConfig]:
    """The modules that read attention, with their configs; the two stacks of an encoder-decoder may have different
    ones.
    """
    configs = {module: vars(module).get("config") for module in model.modules()}
    return {module: config for module, config in configs.items() if isinstance(config, PretrainedConfig)}


@contextmanager
def _own_kernels(view: ModelView, around: Mapping[nn.Module, Around]) -> Iterator[None]:
    """Inside, modules in `around` whose kernel no interface calls run their function around it, too."""
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
    """Inside, the attention modules in `around` call their function instead of the kernel; `stock` chooses the kernel.

    The model reads the choice in a config of its own, since other models may share the one it came with. Raises
    UserError for an attention implementation that has no twin. Models whose attention is their own are left alone.
    """
    if ATTENTION not in view.family.capabilities:
        yield
        return
    config = view.config
    stock = stock or config._attn_implementation.removeprefix(_PREFIX)
    if stock not in _STOCK:
        known = " or ".join(_STOCK)
        raise UserError(f"attention implementation {stock!r} is not supported; load the model with {known}")
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


@contextmanager
def weights_read(view: ModelView, read: ReadWeights) -> Iterator[None]:
    """Inside, forwards run the model's eager attention, and `read` sees the weights of each of `view.attentions`."""

    def attend(kernel: Kernel, module: nn.Module, *tensors: Any, layer: int, **options: Any) -> Attended:
        context, weights = kernel(module, *tensors, **options)
        assert weights is not None  # the eager kernel returns them
        read(layer, weights, tensors[3])
        return context, weights

    around = {attended.attention: partial(attend, layer=layer) for layer, attended in enumerate(view.attentions)}
    with around_attention(view, around, stock="eager"):
        yield
