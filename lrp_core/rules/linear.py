"""Linear layers need no rule: their gradient is the epsilon rule at epsilon 0 (Close Look C.2, AttnLRP equation 8).

What can be spared is the gradient of outputs that no rule reads, in projections that fuse queries, keys and values.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.autograd import Function


class ValuesOnly(Function):
    """y [..., 3 * H * K], the fused [q | k | v] of x [..., D], with the gradient of v alone.

    `weight` [H * K, D] is the part of the projection that makes v.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(weight)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None, None]:
        (weight,) = ctx.saved_tensors
        return dy[..., -weight.shape[0] :] @ weight, None, None
