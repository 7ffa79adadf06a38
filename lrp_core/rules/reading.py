"""Readers of relevance inside a model: a backward pass gives them values and gradients, and they change nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function

from lrp_core.records.types import Batch
from lrp_core.rules.records import Composite
from lrp_core.rules.switch import Switch
from lrp_core.views.view import ModelView

Measure = Callable[[Tensor, Tensor], Tensor]  # (gradient, value) to relevance, elementwise


class Tap(Function):
    """A tensor as it is; hands its gradient and value to `read` when the gradient comes by."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, read: Callable[[Tensor, Tensor], None]) -> Tensor:
        ctx.read = read
        ctx.save_for_backward(x)
        return x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        ctx.read(gradient, x)
        return gradient, None


class BiasTap(Function):
    """A `Tap` whose reader needs the gradient alone: the value is not kept."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, read: Callable[[Tensor], None]) -> Tensor:
        ctx.read = read
        return x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        ctx.read(gradient)
        return gradient, None


class Reader:
    """Reads gradients and values that pass in a backward pass, under each measure of the methods that share it.

    A subclass reduces what it reads at once, so that nothing of length T times F is kept of any sample.
    """

    def __init__(self, view: ModelView, batch: Batch, composites: Sequence[Composite]) -> None:
        """Of the rows `batch` of a forward, whose backward passes follow the `composites`.

        Raises UnsupportedMethod where none of them can be read so.
        """
        self.view, self.mask = view, batch.attention_mask  # [B, T], 1 where a token is
        self.begin({})

    def begin(self, measures: Mapping[str, Measure]) -> None:
        """Start a backward pass that is read under each of these measures."""
        self.measures = measures
        self._read: dict[str, dict[Any, Any]] = {name: {} for name in measures}

    @contextmanager
    def tapping(self, switch: Switch) -> Iterator[None]:
        """A context in which modules of the model pass tensors to this reader. It is entered after the rules."""
        yield

    def before_attention(self, layer: int, tensors: Sequence[Tensor]) -> Sequence[Tensor]:
        """Queries [B, H, T, K], keys and values [B, G, T, K], as they are; readers may tap them."""
        return tensors

    def after_attention(self, layer: int, context: Tensor) -> Tensor:
        """The outputs of heads [B, T, H, K], as they are; readers may tap them."""
        return context

    def fields(self, name: str, composite: Composite, conserves: bool) -> dict[str, Tensor | None]:
        """Fields of `Relevance` from the pass that has just ended, under the measure `name`.

        The pass followed `composite`; `conserves`: the method promises a sum.
        """
        raise NotImplementedError

    def _stacked(self, name: str, keys: Iterable[Any]) -> Tensor:
        """The tensors [B, ...] that were read under `keys`, as [B, keys, ...] on the device of the first."""
        tensors = [self._read[name][key] for key in keys]
        return torch.stack([tensor.to(tensors[0].device) for tensor in tensors], 1)


def tap_input(_: nn.Module, args: tuple[Any, ...], *, read: Callable[[Tensor, Tensor], None]) -> tuple[Any, ...]:
    return (Tap.apply(args[0], read), *args[1:])


def tap_output(_: nn.Module, args: tuple[Any, ...], y: Any, *, read: Callable[[Tensor, Tensor], None]) -> Any:
    if isinstance(y, tuple):
        return (Tap.apply(y[0], read), *y[1:])
    return Tap.apply(y, read)


def tap_bias(_: nn.Module, args: tuple[Any, ...], y: Tensor, *, read: Callable[[Tensor], None]) -> Tensor:
    return BiasTap.apply(y, read)
