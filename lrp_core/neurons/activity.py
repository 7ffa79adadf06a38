"""The activity of every neuron in the texts of a corpus, summed up pass by pass: nothing grows with the corpus.

For each neuron the contexts with the largest activations over positions (AttnLRP 4.3), the sum over tokens, and a
histogram over tokens with bins that are fixed beforehand. All three can be merged.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from lrp_core.device.transfer import to_device, to_host
from lrp_core.interventions.neurons import check_neuron
from lrp_core.parts.block import FeedForward
from lrp_core.readers.feed_forward import Passing, at_neurons
from lrp_core.records.types import Batch
from lrp_core.views.guard import undisturbed
from lrp_core.views.view import ModelView

_POWERS = range(-8, 8)
#: Where the bins of histograms end: powers of two of both signs. Between two of them an activation is at least the
#: lower and below the upper one; the first and the last bin have no other end.
BOUNDARIES = tuple(sorted(sign * 2.0**power for power in _POWERS for sign in (-1, 1)))
BINS = len(BOUNDARIES) + 1
NONE = torch.iinfo(torch.int64).max  # in place of a context's number where there are fewer contexts than are kept
_ENTRIES_AT_ONCE = 1 << 22  # of activations that are sorted into bins


@dataclass
class LayerActivity:
    """The activity of the neurons of one layer; F neurons, K contexts."""

    values: Tensor  # [F, K] the largest activations, in descending order; -inf where there is no context
    contexts: Tensor  # [F, K] int64, the contexts' numbers; of equal activations the lower comes first
    positions: Tensor  # [F, K] int64, where in the context; of equal activations the first
    total: Tensor  # [F] float64, of finite activations over tokens
    histogram: Tensor  # [F, BINS] int64, of finite activations over tokens; an expert's, over those sent to it
    not_finite: Tensor  # [F] int64, tokens whose activation is not; they count nowhere else

    def part(self, part: FeedForward) -> LayerActivity:
        """That of some of the neurons, in the same memory."""
        rows = slice(part.first, part.first + part.size)
        return LayerActivity(*(tensor[rows] for tensor in vars(self).values()))


class Activity:
    """The activity of all neurons of a model, over the contexts that were added."""

    def __init__(self, view: ModelView, top: int, apart: Collection[int] = ()) -> None:
        """Keeps the `top` contexts of each neuron; at tokens whose ids are `apart`, activations do not count.

        Raises UnsupportedMethod for a model whose feed-forward layers are not described.
        """
        check_neuron(view, 0, 0)
        self._view, self._top = view, top
        self._apart = torch.tensor(sorted(apart), dtype=torch.int64)
        self._layers: dict[int, LayerActivity] = {}
        self._tokens: list[Tensor] = []  # of each forward, that counted

    def layer(self, number: int) -> LayerActivity:
        """The sums of a layer, on its device."""
        return self._layers.get(number) or self._empty(number, torch.zeros(0))

    @property
    def tokens(self) -> int:
        """The number of tokens that counted."""
        return sum(map(int, to_host(self._tokens)))

    @torch.inference_mode()
    def add(self, texts: Sequence[Sequence[int]], numbers: Sequence[int]) -> None:
        """One forward over contexts, token ids each, that have these numbers."""
        view = self._view
        batch = batch_of(texts)
        counted = to_device(counting(batch, self._apart), view.device)
        batch, text_numbers = batch.to(view.device), to_device(torch.tensor(numbers), view.device)
        with undisturbed(view), ExitStack() as undo:
            for layer, block in enumerate(view.blocks):
                undo.enter_context(
                    at_neurons(block, partial(self._look, layer=layer, counted=counted, numbers=text_numbers))
                )
            view.hidden(batch)
        self._tokens.append(counted.sum())

    def _look(self, x: Tensor, passing: Passing, *, layer: int, counted: Tensor, numbers: Tensor) -> None:
        is_counted = passing.there(counted).to(x.device)
        x = passing.spread(x.detach(), counted.shape)  # [B, T, F]
        x = x.to(torch.promote_types(x.dtype, torch.float32))
        if layer not in self._layers:
            self._layers[layer] = self._empty(layer, x)
        layer_part = self._layers[layer].part(passing.part)
        finite = torch.isfinite(x) & is_counted[..., None]
        values, positions = x.masked_fill(~finite, -torch.inf).max(1)  # [B, F]
        contexts = numbers.to(x.device)[:, None].masked_fill(values == -torch.inf, NONE)
        values, contexts, positions = _first(layer_part, values.T, contexts.T, positions.T, self._top)
        layer_part.values.copy_(values)
        layer_part.contexts.copy_(contexts)
        layer_part.positions.copy_(positions)
        layer_part.total += x.masked_fill(~finite, 0).sum((0, 1), dtype=torch.float64)
        counts = _counts(x, is_counted)
        layer_part.histogram += counts[:, :BINS]
        layer_part.not_finite += counts[:, BINS]

    def _empty(self, layer: int, x: Tensor) -> LayerActivity:
        width, device = self._view.neuron_names.count(layer), x.device
        return LayerActivity(
            torch.full((width, self._top), -torch.inf, dtype=x.dtype, device=device),
            torch.full((width, self._top), NONE, device=device),
            torch.zeros((width, self._top), dtype=torch.int64, device=device),
            torch.zeros(width, dtype=torch.float64, device=device),
            torch.zeros((width, BINS), dtype=torch.int64, device=device),
            torch.zeros(width, dtype=torch.int64, device=device),
        )


def batch_of(texts: Sequence[Sequence[int]]) -> Batch:
    """A batch of bare token ids."""
    rows = [{"input_ids": list(ids), "position": len(ids) - 1, "target_id": 0, "foil_id": None} for ids in texts]
    return Batch.collate(rows, pad_id=0)


def counting(batch: Batch, apart: Tensor) -> Tensor:
    """[B, T] bool: where a token is whose id is not among those `apart` [N]."""
    return (batch.attention_mask != 0) & ~torch.isin(batch.input_ids, to_device(apart, batch.input_ids.device))


def _first(activity: LayerActivity, values: Tensor, contexts: Tensor, positions: Tensor, top: int) -> list[Tensor]:
    """The largest of the kept [F, K] and the new [F, B] activations, with their contexts and positions."""
    every = [
        torch.cat(both, 1)
        for both in ((activity.values, values), (activity.contexts, contexts), (activity.positions, positions))
    ]
    by_number = every[1].argsort(dim=1, stable=True)
    every = [column.gather(1, by_number) for column in every]
    best = every[0].argsort(dim=1, descending=True, stable=True)[:, :top]
    return [column.gather(1, best) for column in every]


def _counts(x: Tensor, is_counted: Tensor) -> Tensor:
    """Count the activations [B, T, F] of the tokens that `is_counted` [B, T] in each bin: [F, BINS + 1].

    The last bin counts activations that are not finite.
    """
    width, bins = x.shape[-1], BINS + 1
    first = torch.arange(width, device=x.device, dtype=torch.int32) * bins
    counts = torch.zeros(width * bins, dtype=torch.int64, device=x.device)
    at_once = max(1, _ENTRIES_AT_ONCE // width)
    if x.device.type == "cpu":
        for part in x[is_counted].split(at_once):
            counts += torch.bincount(bins_of(part).add_(first).flatten(), minlength=width * bins)
        return counts.view(width, bins)
    for part, counted_part in zip(x.flatten(0, 1).split(at_once), is_counted.flatten().split(at_once), strict=True):
        numbers = (
            bins_of(part).add_(first).flatten()
        )  # a device would be waited for by `bincount`, and by `x[is_counted]`
        counts.scatter_add_(0, numbers.long(), counted_part[:, None].expand_as(part).flatten().long())
    return counts.view(width, bins)


def bins_of(x: Tensor) -> Tensor:
    """The bin of each activation, float32 or float64, as int32; BINS where it is not finite.

    The same as a search among BOUNDARIES, and faster: their ends are powers of two, so exponents tell.
    """
    integer, fraction, bias = (torch.int32, 23, 127) if x.dtype == torch.float32 else (torch.int64, 52, 1023)
    bits, negative = x.abs().view(integer), (x < 0).to(torch.int32)
    infinite = bits >= (2 * bias + 1 << fraction)  # or no number
    size = bits.sub_(negative).bitwise_right_shift_(fraction)  # a negative bin holds its lower end
    size = size.sub_(bias + _POWERS.start - 1).clamp_(0, len(_POWERS)).to(torch.int32)
    return size.mul_(1 - 2 * negative).add_(len(_POWERS)).masked_fill_(infinite, BINS)
