"""Linear layers, and the rules that composites have for groups of them.

By default the true gradient is the epsilon rule at epsilon 0 (Close Look C.2, AttnLRP equation 8). Where a composite
has another rule, the layer's node computes it from input and output. Its group is known once the forward pass has
ended: what attention reads, what reads attention, convolutions, and all others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from closelook.lrp_core.operations.layers import Layer
from closelook.lrp_core.operations.nodes import ruled
from closelook.lrp_core.operations.norms import arguments
from closelook.lrp_core.operations.scope import Scope
from closelook.lrp_core.operations.table import rule

_KERNEL = ("stride", "padding", "dilation")


def layer_of(mode: Scope, x: Tensor, layer: Layer, compute: Callable[[], Tensor]) -> Tensor:
    """The output of a layer at x, whose gradient follows the rule of its group."""
    with torch.no_grad():
        y = compute()
    result = ruled(y, layer.gradient, (x.detach(), y), x)
    mode.layers.by_node[result.grad_fn] = layer
    return result


@rule("linear", carries=("input",))
def linear(mode: Scope, func: Any, args: Any, kwargs: Any) -> Tensor:
    """A linear layer."""
    x, weight, bias = arguments(args, kwargs, ("input", "weight", "bias"))
    mode.refuse_constant(func, x)
    if not mode.rules_layers:
        result = func(*args, **kwargs)
    else:
        result = layer_of(mode, x, Layer(mode.plan, weight, bias), lambda: func(x, weight, bias))
    return mode.roots.projected(x, result)


@rule("conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", carries=("input",))
def convolution(mode: Scope, func: Any, args: Any, kwargs: Any) -> Tensor:
    """A convolution, over images or over tokens."""
    x, weight, bias, *geometry, groups = arguments(args, kwargs, ("input", "weight", "bias", *_KERNEL, "groups"))
    mode.refuse_constant(func, x)
    if not mode.rules_layers:
        result = func(*args, **kwargs)
    else:
        if func is not torch.conv2d or groups not in (None, 1) or isinstance(geometry[1], str):
            raise mode.refused(f"rules of linear layers do not cover {func.__name__}: leave them out of the composite")
        given = {name: value for name, value in zip(_KERNEL, geometry, strict=True) if value is not None}
        layer = Layer(mode.plan, weight, bias, "convolution", kernel={"kernel_size": weight.shape[2:], **given})
        result = layer_of(mode, x, layer, lambda: func(*args, **kwargs))
    return mode.roots.convolved(result) if x is mode.roots.pixels else result


@rule("grouped_mm", "_grouped_mm", carries=("input",))
def of_experts(mode: Scope, func: Any, args: Any, kwargs: Any) -> Tensor:
    """Linear layers of experts, for rows that are sorted by expert."""
    mode.refuse_constant(func, args[0])
    if mode.rules_layers:
        raise mode.refused("rules of linear layers do not cover experts in one piece: leave them out of the composite")
    return func(*args, **kwargs)
