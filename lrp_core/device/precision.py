"""The precision of computations: float32 at least, and float64 throughout in float64 models.

transformers rounds to float32 inside RMSNorm, the eager softmax, rotary positions and routers, whatever the model's
dtype. Inside `unrounded`, modelling code that asks for float32 gets float64. Outside of it, and on other threads, the
model computes as before.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode


def wide_dtype(dtype: torch.dtype) -> torch.dtype:
    """`dtype`, or float32 if `dtype` is narrower."""
    return torch.promote_types(dtype, torch.float32)


def wide(x: Tensor) -> Tensor:
    """`x` in float32 at least."""
    return x.to(wide_dtype(x.dtype))


class _Float64(TorchFunctionMode):
    """Inside, requests for float32 give float64, except for conversions of integers.

    Conversions of integers are exact in float32. T5 computes buckets of distances from their logarithms in float32:
    another rounding could choose another bucket. Where such a number meets float64 in a matrix product, which unlike
    other operations takes one dtype alone, it is widened: rotary embeddings multiply positions so.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if args and isinstance(args[0], Tensor) and not args[0].is_floating_point():
            return func(*args, **kwargs)
        if func is torch.Tensor.float:
            func = torch.Tensor.double
        if func is torch.Tensor.matmul and args[0].dtype == torch.float64:
            args = tuple(map(torch.Tensor.double, args))
        return func(*map(_wider, args), **{name: _wider(value) for name, value in kwargs.items()})


def _wider(argument: Any) -> Any:
    """float64 for float32; any other argument unchanged."""
    return torch.float64 if argument is torch.float32 else argument


def unrounded(dtype: torch.dtype) -> AbstractContextManager[Any]:
    """A context in which a float64 model rounds nothing to float32; for other dtypes it does nothing."""
    return _Float64() if dtype == torch.float64 else nullcontext()
