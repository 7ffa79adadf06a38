"""The effect of rounding on the numbers of a model, measured on the model itself: the bound of every check.

Two computations of the same numbers may sum in different orders, so that each linear layer rounds differently. To
measure the effect, the numbers are computed again with the output of each linear layer changed at random by one unit of
rounding, relative to the root mean square of a token's outputs, as large as the error of such a sum. Two computations
may differ by MARGIN times the largest change in DRAWS such runs plus the unit. A larger difference is not rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from closelook.lrp_core.device.precision import wide
from closelook.lrp_core.operations.watching import shifted
from closelook.lrp_core.verification.record import Gap
from closelook.lrp_core.views.view import ModelView

MARGIN = 16.0  # on all tiny models in all precisions, equal computations differed by at most 6 times the change
DRAWS = 2
_LAYERS = (nn.Linear, nn.Conv2d, nn.Embedding, Conv1D)
_TF32 = 2.0**-10  # the unit of rounding of products in TensorFloat-32


def unit_of(view: ModelView) -> float:
    """The relative unit of rounding of the model's products: of its dtype, or of TensorFloat-32 if a GPU uses that."""
    unit = torch.finfo(view.dtype).eps
    tensor_cores = view.device.type == "cuda" and torch.backends.cuda.matmul.allow_tf32
    return max(unit, _TF32) if tensor_cores and view.dtype == torch.float32 else unit


def distance(ours: Tensor, theirs: Tensor) -> float:
    """The largest absolute difference between two tensors of the same shape."""
    return float((wide(ours).cpu() - wide(theirs).cpu()).abs().max())


def largest(numbers: Tensor) -> float:
    """The largest absolute value, but never 0, so that it can divide."""
    return float(wide(numbers).abs().max().clamp_min(torch.finfo(torch.float32).tiny))


def differ(ours: Tensor, theirs: Tensor, bound: float) -> bool:
    """True if two tensors differ by more than `bound`, relative to the largest number of `theirs`."""
    return distance(ours, theirs) > bound * largest(theirs)


@dataclass(frozen=True)
class Rounded:
    """The result of a computation with a model, and results of the same computation with perturbed linear layers.

    Results may be of any type; `change` and `gap` need tensors, which `map` takes from the results.
    """

    value: Any  # the result
    moved: Sequence[Any]  # the results of DRAWS runs in which outputs of linear layers are changed by the unit
    unit: float  # the relative unit of rounding

    @classmethod
    def of(cls, view: ModelView, compute: Callable[[], Any], unit: float) -> Rounded:
        """Call `compute` once as it is, and DRAWS times with outputs of linear layers changed by `unit`."""
        value, results = compute(), []
        for seed in range(DRAWS):
            with moved(view, unit, seed):
                results.append(compute())
        return cls(value, results, unit)

    def map(self, read: Callable[[Any], Any]) -> Rounded:
        """The same with `read` applied to every result."""
        return Rounded(read(self.value), [read(result) for result in self.moved], self.unit)

    @property
    def change(self) -> float:
        """The largest absolute change of a number by rounding."""
        return max(distance(result, self.value) for result in self.moved)

    def gap(self, subject: str, theirs: Tensor, ours: Tensor | None = None, scale: Tensor | None = None) -> Gap:
        """The gap between `theirs` and the value, or `ours` if given, which must be equally sensitive to rounding."""
        size = largest(self.value if scale is None else scale)
        measured = distance(self.value if ours is None else ours, theirs)
        return Gap(subject, measured / size, MARGIN * (self.change / size + self.unit))


@contextmanager
def moved(view: ModelView, unit: float, seed: int) -> Iterator[None]:
    """Inside, each output of a linear layer or embedding is changed up or down by one unit of rounding, by `seed`."""
    generator = torch.Generator().manual_seed(seed)
    with ExitStack() as undo:
        hook = partial(_move, unit=unit, generator=generator)
        for module in view.model.modules():
            if isinstance(module, _LAYERS):
                undo.enter_context(module.register_forward_hook(hook))
        yield


def _move(_: nn.Module, args: tuple[Any, ...], y: Tensor, *, unit: float, generator: torch.Generator) -> Tensor:
    """Forward hook: adds plus or minus `unit` times the root mean square over the last axis to each number of y."""
    signs = torch.randint(0, 2, y.shape, generator=generator) * 2 - 1

    def rounding(y: Tensor) -> Tensor:
        size = wide(y).square().mean(-1, keepdim=True).sqrt()
        return (signs.to(y.device) * size * unit).to(y.dtype)

    return shifted(y, rounding)
