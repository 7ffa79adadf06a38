"""Readers of relevance inside a model: they see values and gradients in a backward pass and change neither."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function

from closelook.lrp_core.records.types import Batch
from closelook.lrp_core.rules.records import Composite
from closelook.lrp_core.rules.switch import Switch
from closelook.lrp_core.views.view import ModelView

Read = Callable[[Tensor, Tensor], None]  # reads a gradient and a value
Measure = Callable[[Tensor, Tensor], Tensor]  # (gradient, value) to relevance, elementwise


class Tap(Function):
    """Identity; calls `read(gradient, value)` when the tensor's gradient arrives in the backward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, read: Read) -> Tensor:
        ctx.read = read
        ctx.save_for_backward(x)
        return x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        ctx.read(gradient, x)
        return gradient, None


class BiasTap(Function):
    """Identity; calls `read(gradient)` in the backward pass. Unlike `Tap` it does not keep the value."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, read: Callable[[Tensor], None]) -> Tensor:
        ctx.read = read
        return x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        ctx.read(gradient)
        return gradient, None


class Reader:
    """Reads gradients and values inside a model in a backward pass, under the measure of each method that shares it.

    A subclass reduces what it reads at once, for example over positions, so that memory stays small.
    """

    def __init__(self, view: ModelView, batch: Batch, composites: Sequence[Composite]) -> None:
        """`batch` are the rows of the forward pass, `composites` those that its backward passes follow.

        Raises UnsupportedMethod if no composite allows this relevance to be read.
        """
        self.view, self.mask = view, batch.attention_mask  # [B, T], 1 where a token is
        self.begin({})

    def begin(self, measures: Mapping[str, Measure]) -> None:
        """Start a backward pass, to be read under each of the `measures`, by name of the method."""
        self.measures = measures
        self._read: dict[str, dict[Any, Any]] = {name: {} for name in measures}

    @contextmanager
    def tapping(self, switch: Switch) -> Iterator[None]:
        """A context in which modules of the model pass tensors to this reader. It is entered after the rules."""
        yield

    def before_attention(self, layer: int, tensors: Sequence[Tensor]) -> Sequence[Tensor]:
        """The same queries [B, H, T, K], keys and values [B, G, T, K]; a reader may put taps on them."""
        return tensors

    def after_attention(self, layer: int, context: Tensor) -> Tensor:
        """The same head outputs [B, T, H, K]; a reader may put a tap on them."""
        return context

    def fields(self, name: str, composite: Composite, conserves: bool) -> dict[str, Tensor | None]:
        """Fields of a Relevance from the backward pass that has just ended, under the measure `name`.

        The pass followed `composite`; `conserves` says that the method promises a sum.
        """
        raise NotImplementedError

    def _stacked(self, name: str, keys: Iterable[Any]) -> Tensor:
        """Stack the tensors [B, ...] that were read under the N `keys` to [B, N, ...], on the device of the first."""
        tensors = [self._read[name][key] for key in keys]
        return torch.stack([tensor.to(tensors[0].device) for tensor in tensors], 1)


def tap_input(_: nn.Module, args: tuple[Any, ...], *, read: Read) -> tuple[Any, ...]:
    """Forward pre-hook: puts a `Tap` on the first argument of a module."""
    return (Tap.apply(args[0], read), *args[1:])


def tap_output(_: nn.Module, args: tuple[Any, ...], y: Any, *, read: Read) -> Any:
    """Forward hook: puts a `Tap` on a module's output, or on the first of several outputs."""
    if isinstance(y, tuple):
        return (Tap.apply(y[0], read), *y[1:])
    return Tap.apply(y, read)


def tap_bias(_: nn.Module, args: tuple[Any, ...], y: Tensor, *, read: Callable[[Tensor], None]) -> Tensor:
    """Forward hook: puts a `BiasTap` on a module's output, whose gradient is that of its bias."""
    return BiasTap.apply(y, read)
