"""The gradients of linear layers, under the rules of a composite.

By default their true gradient is the epsilon rule at epsilon 0 (Close Look C.2, AttnLRP equation 8). A composite may
give groups of them another rule. If a composite does not need the gradients of queries and keys, `values_only` leaves
them out of fused projections.
"""

from __future__ import annotations

from torch import Tensor

from lrp_core.parts.linear import LinearLayer, ReadRows
from lrp_core.rules.switch import Ruled, Switch


def project(x: Tensor, y: Tensor, layer: LinearLayer, switch: Switch) -> Tensor:
    """The output y of a layer at x, whose gradient at x follows the composite in force.

    Weights are read in the backward pass, so that the graph does not keep offloaded weights in memory.
    """

    def rule(dy: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor]:
        weight, bias = layer.parameters()
        weight, bias = weight.to(dy.device), None if bias is None else bias.to(dy.device)
        of_layer = switch.current.linear.of(layer.group)
        dy, inputs = layer.outputs(dy), layer.inputs(x)
        if of_layer.backward is None:
            return (layer.gathered(dy @ weight, x),)
        sizes = (switch.sizes(weight),) if of_layer.reads_sizes else ()
        outputs = layer.outputs(y)
        if bias is not None and isinstance(layer, ReadRows) and switch.current.constant_logits_bias:
            outputs, bias = outputs - bias, None
        return (layer.gathered(of_layer.backward(dy, inputs, outputs, weight, bias, *sizes), x),)

    y = y.detach()
    return Ruled.apply(y, rule, (x, y), x)


def values_only(x: Tensor, y: Tensor, weight: Tensor) -> Tensor:
    """The fused output y = [q | k | v] [..., 3 * H * K] of x [..., D]; only v passes a gradient on to x.

    `weight` [H * K, D] is the part of the projection that makes v.
    """

    def rule(dy: Tensor) -> tuple[Tensor]:
        return (dy[..., -len(weight) :] @ weight,)

    return Ruled.apply(y.detach(), rule, (), x)
