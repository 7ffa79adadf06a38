"""Neurons of feed-forward layers set to a value or scaled: what enters the down projection is changed (AttnLRP 4.3).

Which neurons of which layer, and to what, is an input of a row: a mapping of (layer, neuron) to a number for each.
Those of an expert change for the tokens that are sent to it; for others they have no value.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial

import torch
from torch import Tensor

from lrp_core.device.transfer import to_device
from lrp_core.readers.feed_forward import Passing, at_neurons
from lrp_core.records.capabilities import NEURONS
from lrp_core.records.types import UnsupportedMethod, UserError
from lrp_core.views.view import ModelView

Changes = Sequence[Mapping[tuple[int, int], float]]  # a row each: (layer, neuron) to a value or a factor


def check_neuron(view: ModelView, layer: int, neuron: int) -> None:
    """Raises UserError, with the range, for a layer or a neuron that the model does not have."""
    if NEURONS not in view.family.capabilities:
        raise UnsupportedMethod(f"neurons need {NEURONS.says}, which {view.family.title} do not have")
    view.neuron_names.check(layer, neuron)


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
    for row, of_row in enumerate(changes):
        for (layer, neuron), value in of_row.items():
            check_neuron(view, layer, neuron)
            by_layer.setdefault(layer, []).append((row, neuron, value))
    with ExitStack() as undo:
        for layer, entries in by_layer.items():
            rows, neurons, values = zip(*entries, strict=True)
            visit = partial(
                _change,
                rows=torch.tensor(rows),
                neurons=torch.tensor(neurons),
                values=torch.tensor(values, dtype=torch.float64),
                size=len(changes),
                where=where,
                scaled=scaled,
            )
            undo.enter_context(at_neurons(view.blocks[layer], visit))
        yield


def _change(
    whole: Tensor,
    passing: Passing,
    *,
    rows: Tensor,
    neurons: Tensor,
    values: Tensor,
    size: int,
    where: Tensor | None,
    scaled: bool,
) -> Tensor | None:
    """`rows`, `neurons` and `values` [N] name entries of the activations of a layer."""
    if whole.dim() == 3:
        shape = list(whole.shape[:2])
    else:  # some families flatten batches, and experts have tokens of all rows
        shape = [size, passing.count // size] if passing.count % size == 0 else [passing.count]
    if shape[0] != size or (where is not None and list(where.shape) != shape):
        expected_shape = [size] if where is None else list(where.shape)
        raise UserError(f"changes of neurons are for a batch of the shape {expected_shape}, not {shape}")
    in_part = (neurons >= passing.part.first) & (neurons < passing.part.first + passing.part.size)
    if not in_part.any():
        return None
    x = passing.spread(whole, shape)
    rows, neurons = (to_device(of, x.device) for of in (rows[in_part], neurons[in_part] - passing.part.first))
    values = to_device(values[in_part].to(x.dtype), x.device)[:, None]
    before = x[rows, :, neurons]  # [N, T]
    after = before * values if scaled else values.expand_as(before)
    if where is not None:
        after = torch.where(to_device(where, x.device)[rows], after, before)
    changed = x.clone()
    changed[rows, :, neurons] = after
    return passing.gathered(changed, whole)
