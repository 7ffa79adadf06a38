"""The precision in which numbers are worked out: float32 at least, and float64 all the way in models of float64.

transformers rounds to float32 inside RMSNorm, the eager softmax, rotary positions and routers, whatever the model's
precision is. Inside `unrounded` modelling code that asks for float32 gets float64. Nothing is replaced: outside of it,
and on other threads, the same model computes as before.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode


def wide_dtype(dtype: torch.dtype) -> torch.dtype:
    """`dtype`, or float32 where it is narrower."""
    return torch.promote_types(dtype, torch.float32)


def wide(x: Tensor) -> Tensor:
    """`x` in float32 at least."""
    return x.to(wide_dtype(x.dtype))


class _Float64(TorchFunctionMode):
    """Reads every request for float32 as one for float64, unless it is made of integers.

    Floats made of integers are exact already, and T5 sorts distances into buckets by their logarithms in float32:
    other roundings could choose another bucket.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if args and isinstance(args[0], Tensor) and not args[0].is_floating_point():
            return func(*args, **kwargs)
        if func is torch.Tensor.float:
            func = torch.Tensor.double
        return func(*map(_wider, args), **{name: _wider(value) for name, value in kwargs.items()})


def _wider(argument: Any) -> Any:
    return torch.float64 if argument is torch.float32 else argument


def unrounded(dtype: torch.dtype) -> AbstractContextManager[Any]:
    """Inside, a model in `dtype` computes in no narrower precision, if that is float64. Others are left alone."""
    return _Float64() if dtype == torch.float64 else nullcontext()
