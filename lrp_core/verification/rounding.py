"""The effect of rounding on the numbers of a model: the bound of every check, measured on the model itself.

Two computations of the same numbers sum in another order, so each linear layer rounds otherwise. The numbers are
computed again with what each linear layer puts out moved at random by one unit of rounding, relative to the root mean
square of a token's outputs: as much as one such sum may be off. They may lie apart by MARGIN times the largest change
of DRAWS such runs, and of the unit itself. Beyond that it was not rounding.
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

from lrp_core.device.precision import wide
from lrp_core.verification.record import Gap
from lrp_core.views.view import ModelView

MARGIN = 16.0  # on every tiny model in every precision, equal computations lay within 6 times the change
DRAWS = 2
_LAYERS = (nn.Linear, nn.Conv2d, nn.Embedding, Conv1D)
_TF32 = 2.0**-10  # the unit of rounding of products in TensorFloat-32


def unit_of(view: ModelView) -> float:
    """The unit of rounding of the model's products: of its precision, or of TensorFloat-32 where a GPU uses that."""
    unit = torch.finfo(view.dtype).eps
    tensor_cores = view.device.type == "cuda" and torch.backends.cuda.matmul.allow_tf32
    return max(unit, _TF32) if tensor_cores and view.dtype == torch.float32 else unit


def distance(ours: Tensor, theirs: Tensor) -> float:
    """The largest difference of two tensors of one shape."""
    return float((wide(ours).cpu() - wide(theirs).cpu()).abs().max())


def largest(numbers: Tensor) -> float:
    """The largest absolute value; never 0, since others are divided by it."""
    return float(wide(numbers).abs().max().clamp_min(torch.finfo(torch.float32).tiny))


@dataclass(frozen=True)
class Rounded:
    """The result of a computation with a model, and its results with linear layers moved by a unit of rounding.

    Gaps and changes are those of tensors; `map` takes tensors from other results.
    """

    value: Any
    moved: Sequence[Any]
    unit: float

    @classmethod
    def of(cls, view: ModelView, compute: Callable[[], Any], unit: float) -> Rounded:
        """The result of `compute` as it is, and in each of DRAWS runs with layers moved by `unit`."""
        value, results = compute(), []
        for seed in range(DRAWS):
            with moved(view, unit, seed):
                results.append(compute())
        return cls(value, results, unit)

    def map(self, read: Callable[[Any], Any]) -> Rounded:
        """`read` applied to each result."""
        return Rounded(read(self.value), [read(result) for result in self.moved], self.unit)

    @property
    def change(self) -> float:
        """The largest distance by which rounding moves a number."""
        return max(distance(result, self.value) for result in self.moved)

    def gap(self, subject: str, theirs: Tensor, ours: Tensor | None = None, scale: Tensor | None = None) -> Gap:
        """The gap of `theirs` from the value, or from `ours`, other numbers that rounding moves as much.

        `scale` are numbers whose largest the gap is relative to; default: the value.
        """
        size = largest(self.value if scale is None else scale)
        measured = distance(self.value if ours is None else ours, theirs)
        return Gap(subject, measured / size, MARGIN * (self.change / size + self.unit))


@contextmanager
def moved(view: ModelView, unit: float, seed: int) -> Iterator[None]:
    """Inside, each number that a linear layer or an embedding puts out is moved up or down by one unit of rounding."""
    generator = torch.Generator().manual_seed(seed)
    with ExitStack() as undo:
        layers = [module for module in view.model.modules() if isinstance(module, _LAYERS)]
        for module in (*layers, view.readout):  # logits are read by a module of the view
            hook = partial(_move, unit=unit, generator=generator)
            undo.callback(module.register_forward_hook(hook).remove)
        yield


def _move(_: nn.Module, args: tuple[Any, ...], y: Tensor, *, unit: float, generator: torch.Generator) -> Tensor:
    """`y` [..., D] with a step of `unit` times the root mean square of the last axis on each number."""
    signs = torch.randint(0, 2, y.shape, generator=generator) * 2 - 1
    size = wide(y.detach()).square().mean(-1, keepdim=True).sqrt()
    return y + (signs.to(y.device) * size * unit).to(y.dtype)
