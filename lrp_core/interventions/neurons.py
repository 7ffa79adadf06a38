"""Neurons of feed-forward layers set to a value or scaled: what enters the down projection is changed (AttnLRP 4.3).

Which neurons of which layer, and to what, is an input of a row: a mapping of (layer, neuron) to a number for each.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from lrp_core.capabilities import NEURONS
from lrp_core.types import UnsupportedMethod, UserError
from lrp_core.view import ModelView

Changes = Sequence[Mapping[tuple[int, int], float]]  # a row each: (layer, neuron) to a value or a factor


def check_neuron(view: ModelView, layer: int, neuron: int) -> None:
    """Raises UserError, with the range, for a layer or a neuron that the model does not have."""
    if NEURONS not in view.family.capabilities:
        raise UnsupportedMethod(f"neurons need {NEURONS.says}, which {view.family.title} do not have")
    for number, size, what in ((layer, view.n_layers, "layer"), (neuron, view.n_neurons, "neuron")):
        if not 0 <= number < size:
            raise UserError(f"there is no {what} {number}: the model's {what}s are 0 to {size - 1}")


@contextmanager
def neurons_set(view: ModelView, changes: Changes, where: Tensor | None = None) -> Iterator[None]:
    """Inside, neurons have the values that `changes` gives for each row of the batch.

    `where` [B, T] bool says at which positions; default: all. Raises as `check_neuron`, and inside the scope UserError
    for a batch of another number of rows.
    """
    with _changed(view, changes, where, scaled=False):
        yield


@contextmanager
def neurons_scaled(view: ModelView, changes: Changes, where: Tensor | None = None) -> Iterator[None]:
    """As `neurons_set`, but activations are multiplied: 0 knocks a neuron out, 1 changes nothing."""
    with _changed(view, changes, where, scaled=True):
        yield


@contextmanager
def _changed(view: ModelView, changes: Changes, where: Tensor | None, scaled: bool) -> Iterator[None]:
    by_layer: dict[int, list[tuple[int, int, float]]] = {}
    for row, own in enumerate(changes):
        for (layer, neuron), value in own.items():
            check_neuron(view, layer, neuron)
            by_layer.setdefault(layer, []).append((row, neuron, value))
    with ExitStack() as undo:
        for layer, entries in by_layer.items():
            rows, neurons, values = zip(*entries, strict=True)
            hook = partial(
                _change,
                rows=torch.tensor(rows),
                neurons=torch.tensor(neurons),
                values=torch.tensor(values, dtype=torch.float64),
                size=len(changes),
                where=where,
                scaled=scaled,
            )
            undo.callback(view.blocks[layer].down.register_forward_pre_hook(hook).remove)
        yield


def _change(
    _: nn.Module,
    args: tuple[Any, ...],
    *,
    rows: Tensor,
    neurons: Tensor,
    values: Tensor,
    size: int,
    where: Tensor | None,
    scaled: bool,
) -> tuple[Any, ...]:
    """`rows`, `neurons` and `values` [N] name entries of the activations [B, T, F], which some families flatten."""
    whole, *rest = args
    x = whole.view(size, -1, whole.shape[-1]) if whole.dim() == 2 and len(whole) % size == 0 else whole
    if x.shape[0] != size or (where is not None and where.shape != x.shape[:2]):
        given = [size] if where is None else list(where.shape)
        raise UserError(f"changes of neurons are for a batch of the shape {given}, not {list(x.shape[:2])}")
    rows, neurons, values = rows.to(x.device), neurons.to(x.device), values.to(x.device, x.dtype)[:, None]
    before = x[rows, :, neurons]  # [N, T]
    after = before * values if scaled else values.expand_as(before)
    if where is not None:
        after = torch.where(where.to(x.device)[rows], after, before)
    changed = x.clone()
    changed[rows, :, neurons] = after
    return (changed.view_as(whole), *rest)
