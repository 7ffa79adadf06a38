"""Neurons of feed-forward layers set to a value or scaled: the input of the down projection changes (AttnLRP 4.3).

Every row has its own changes, a mapping of (layer, neuron) to a number. Neurons of an expert change only for tokens
that are sent to it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from closelook.lrp_core.device.transfer import to_device
from closelook.lrp_core.readers.feed_forward import Passing, at_neurons
from closelook.lrp_core.records.capabilities import NEURONS
from closelook.lrp_core.records.types import UnsupportedMethod, UserError
from closelook.lrp_core.views.view import ModelView

Changes = Sequence[Mapping[tuple[int, int], float]]  # for each row: (layer, neuron) to a value or a factor


def check_neuron(view: ModelView, layer: int, neuron: int) -> None:
    """Raise UserError, which tells the range, for a layer or neuron that the model does not have.

    Raises UnsupportedMethod for a model whose feed-forward layers are not described.
    """
    if NEURONS not in view.family.capabilities:
        raise UnsupportedMethod(f"neurons need {NEURONS.says}, which {view.family.title} do not have")
    view.neuron_names.check(layer, neuron)


def neurons_set(view: ModelView, changes: Changes, where: Tensor | None = None) -> AbstractContextManager[None]:
    """Inside, neurons have the values that `changes` gives for each row of the batch.

    They change at the positions where `where` [B, T] is True (default: all). Raises as `check_neuron`; a forward inside
    raises UserError for a batch with another number of rows.
    """
    return _changed(view, changes, where, scaled=False)


def neurons_scaled(view: ModelView, changes: Changes, where: Tensor | None = None) -> AbstractContextManager[None]:
    """As `neurons_set`, but activations are multiplied by the numbers: 0 ablates a neuron, 1 changes nothing."""
    return _changed(view, changes, where, scaled=True)


@contextmanager
def _changed(view: ModelView, changes: Changes, where: Tensor | None, scaled: bool) -> Iterator[None]:
    """Inside, neurons are set to the numbers in `changes` or, if `scaled`, multiplied by them."""
    by_layer: dict[int, list[tuple[int, int, float]]] = {}
    for row, of_row in enumerate(changes):
        for (layer, neuron), value in of_row.items():
            check_neuron(view, layer, neuron)
            by_layer.setdefault(layer, []).append((row, neuron, value))
    with ExitStack() as undo:
        for layer, entries in by_layer.items():
            rows, neurons, numbers = zip(*entries, strict=True)
            values = torch.tensor(numbers, dtype=torch.float64)
            change = _Change(torch.tensor(rows), torch.tensor(neurons), values, len(changes), where, scaled)
            undo.enter_context(at_neurons(view.blocks[layer], change))
        yield


@dataclass(frozen=True)
class _Change:
    """Visitor of `at_neurons` that sets or scales N neurons of a layer."""

    rows: Tensor  # [N], of the batch
    neurons: Tensor  # [N]
    values: Tensor  # [N] float64
    size: int  # the number of rows B
    where: Tensor | None  # [B, T], True at positions that change; None: all change
    scaled: bool

    def __call__(self, whole: Tensor, passing: Passing) -> Tensor | None:
        """The changed input of a down projection; None if no neuron of this part changes."""
        size, where = self.size, self.where
        if whole.dim() == 3:
            shape = list(whole.shape[:2])
        else:  # some families flatten batches, and experts have tokens of all rows
            shape = [size, passing.count // size] if passing.count % size == 0 else [passing.count]
        if shape[0] != size or (where is not None and list(where.shape) != shape):
            expected_shape = [size] if where is None else list(where.shape)
            raise UserError(
                f"changes of neurons are given for a batch of the shape {expected_shape}, and this one has {shape}: "
                "give changes for each of its rows"
            )
        neurons = self.neurons - passing.part.first
        in_part = (neurons >= 0) & (neurons < passing.part.size)
        if not in_part.any():
            return None
        x = passing.spread(whole, shape)
        rows, neurons = (to_device(of[in_part], x.device) for of in (self.rows, neurons))
        values = to_device(self.values[in_part].to(x.dtype), x.device)[:, None]
        before = x[rows, :, neurons]  # [N, T]
        after = before * values if self.scaled else values.expand_as(before)
        if where is not None:
            after = torch.where(to_device(where, x.device)[rows], after, before)
        changed = x.clone()
        changed[rows, :, neurons] = after
        return passing.gathered(changed, whole)
