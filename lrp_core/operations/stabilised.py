"""Explicit propagation: relevance is divided by sums, to which a small number is added (AttnLRP section 3).

As a gradient it is dy times y / (y + epsilon sign(y)) at every sum y: of a linear layer, a matrix product, a norm, or
of two tensors.
"""

from __future__ import annotations

from torch import Tensor

from closelook.lrp_core.device.precision import wide
from closelook.lrp_core.operations.marks import mark_of, marked
from closelook.lrp_core.operations.nodes import Plan, ruled
from closelook.lrp_core.operations.table import spellings
from closelook.lrp_core.rules.softmax import stabilised

_NAMES: tuple[str, ...] = (
    "linear",
    "conv1d",
    "conv2d",
    "matmul",
    "mm",
    "bmm",
    "einsum",
    "addmm",
    "baddbmm",
    "grouped_mm",
    "add",
    "sub",
)
_NAMES += ("sum", "mean", "layer_norm", "rms_norm", "group_norm")
SUMS = frozenset(func for name in _NAMES for func in spellings(name))


def stabilised_sum(y: Tensor, plan: Plan) -> Tensor:
    """The same sum y, by which the composite in force divides with its stabiliser.

    In half precision, terms may cancel to exactly 0. Then the stabilised sum passes them no relevance, while the plain
    gradient gives them shares of opposite sign: with and without a stabiliser, relevance may differ by a tenth.
    """
    mark = mark_of(y)
    if not y.requires_grad or mark.constant or mark.elementwise is not None:
        return y

    def rule(gradient: Tensor, y: Tensor) -> tuple[Tensor]:
        epsilon = plan.composite.stabiliser
        if not epsilon:
            return (gradient,)
        y = wide(y)  # a small epsilon is 0 in half precision
        return (gradient * (y / stabilised(y, epsilon)).to(gradient.dtype),)

    kept = y.detach().clone()  # models may change y in place
    return marked(ruled(y, rule, (kept,), y), mark)
