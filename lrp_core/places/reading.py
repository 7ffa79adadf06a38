"""Readers of relevance inside a model: they see values and gradients in a backward pass and change neither."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from closelook.lrp_core.operations.watching import Read, watched
from closelook.lrp_core.records.types import Batch
from closelook.lrp_core.rules.records import Composite
from closelook.lrp_core.views.view import ModelView

Measure = Callable[[Tensor, Tensor], Tensor]  # (gradient, value) to relevance, elementwise


class Reader:
    """Reads gradients and values inside a model in a backward pass, under the measure of each method that shares it.

    A subclass reduces what it reads at once, for example over positions, so that memory stays small.
    """

    def __init__(self, view: ModelView, batch: Batch, composites: Sequence[Composite]) -> None:
        """`batch` are the rows of the forward pass, `composites` those that its backward passes follow."""
        self.view, self.mask = view, batch.attention_mask  # [B, T], 1 where a token is
        self.begin({})

    def begin(self, measures: Mapping[str, Measure]) -> None:
        """Start a backward pass, to be read under each of the `measures`, by name of the method."""
        self.measures = measures
        self._read: dict[str, dict[Any, Any]] = {name: {} for name in measures}

    @contextmanager
    def tapping(self) -> Iterator[None]:
        """A context in which modules of the model pass tensors to this reader."""
        yield

    def before_attention(self, layer: int, tensors: Sequence[Tensor]) -> Sequence[Tensor]:
        """The same queries [B, H, T, K], keys and values [B, G, T, K]; a reader may watch them."""
        return tensors

    def after_attention(self, layer: int, context: Tensor) -> Tensor:
        """The same head outputs [B, T, H, K]; a reader may watch them."""
        return context

    def fields(self, name: str, composite: Composite, conserves: bool) -> dict[str, Tensor | None]:
        """Fields of a Relevance from the backward pass that has just ended, under the measure `name`."""
        raise NotImplementedError

    def _stacked(self, name: str, keys: Iterable[Any]) -> Tensor:
        """Stack the tensors [B, ...] that were read under the N `keys` to [B, N, ...], on the device of the first."""
        tensors = [self._read[name][key] for key in keys]
        return torch.stack([tensor.to(tensors[0].device) for tensor in tensors], 1)


def tap_input(_: nn.Module, args: tuple[Any, ...], *, read: Read) -> tuple[Any, ...]:
    """Forward pre-hook: watches the first argument of a module."""
    return (watched(args[0], read), *args[1:])


def tap_output(_: nn.Module, args: tuple[Any, ...], y: Any, *, read: Read) -> Any:
    """Forward hook: watches a module's output, or the first of several outputs."""
    if isinstance(y, tuple):
        return (watched(y[0], read), *y[1:])
    return watched(y, read)


def tap_bias(_: nn.Module, args: tuple[Any, ...], y: Tensor, *, read: Callable[[Tensor], None]) -> Tensor:
    """Forward hook: watches the gradient of a module's output, which is that of its bias, and keeps no values."""
    return watched(y, read, keep=False)
