"""Statistics of every neuron's activations over the texts of a corpus, in memory that does not grow with the corpus.

For each neuron they are the contexts (texts) with its largest activations (AttnLRP 4.3), the sum of activations over
tokens, and a histogram over tokens with fixed bins. Results of parts of a corpus can be merged.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from closelook.lrp_core.device.precision import wide
from closelook.lrp_core.device.transfer import to_device, to_host
from closelook.lrp_core.interventions.neurons import check_neuron
from closelook.lrp_core.parts.block import FeedForward
from closelook.lrp_core.readers.feed_forward import Passing, at_neurons
from closelook.lrp_core.records.types import Batch
from closelook.lrp_core.views.guard import undisturbed
from closelook.lrp_core.views.view import ModelView

_POWERS = range(-8, 8)
#: The boundaries between the bins of histograms: powers of two of both signs. A bin holds activations from its lower
#: boundary up to, not including, its upper one; the first and the last bin are open.
BOUNDARIES = tuple(sorted(sign * 2.0**power for power in _POWERS for sign in (-1, 1)))
BINS = len(BOUNDARIES) + 1
NONE = torch.iinfo(torch.int64).max  # the context's number where a neuron has fewer contexts than are kept
_ENTRIES_AT_ONCE = 1 << 22  # activations that are sorted into bins at once


@dataclass
class LayerActivity:
    """Statistics of the F neurons of one layer, with K contexts for each."""

    values: Tensor  # [F, K] the largest activations, in descending order; -inf where there is no context
    contexts: Tensor  # [F, K] int64, numbers of their contexts; of equal activations the lower number comes first
    positions: Tensor  # [F, K] int64, their positions in the context; of equal activations the first
    total: Tensor  # [F] float64, the sum of finite activations over tokens
    histogram: Tensor  # [F, BINS] int64, counts of finite activations; of an expert, over the tokens sent to it
    not_finite: Tensor  # [F] int64, tokens whose activation is not finite; they are in no other field

    def part(self, part: FeedForward) -> LayerActivity:
        """The statistics of the neurons of one part, sharing memory with these."""
        rows = slice(part.first, part.first + part.size)
        return LayerActivity(*(tensor[rows] for tensor in vars(self).values()))


class Activity:
    """Statistics of all neurons of a model over the contexts that were added."""

    def __init__(self, view: ModelView, top: int, apart: Collection[int] = ()) -> None:
        """Keep the `top` contexts of each neuron. Activations at tokens with ids in `apart` do not count.

        Raises UnsupportedMethod for a model whose feed-forward layers are not described.
        """
        check_neuron(view, 0, 0)
        self._view, self._top = view, top
        self._apart = torch.tensor(sorted(apart), dtype=torch.int64)
        self._layers: dict[int, LayerActivity] = {}
        self._tokens: list[Tensor] = []  # for each forward, the number of tokens that count

    def layer(self, number: int) -> LayerActivity:
        """The statistics of the layer with this number, on the layer's device."""
        return self._layers.get(number) or self._empty(number, torch.zeros(0))

    @property
    def tokens(self) -> int:
        """The number of tokens that counted so far."""
        return sum(map(int, to_host(self._tokens)))

    @torch.inference_mode()
    def add(self, texts: Sequence[Sequence[int]], numbers: Sequence[int]) -> None:
        """Add contexts, given as lists of token ids, with these `numbers`; one forward pass."""
        view = self._view
        batch = batch_of(texts)
        counted = to_device(counting(batch, self._apart), view.device)
        batch, text_numbers = batch.to(view.device), to_device(torch.tensor(numbers), view.device)
        with undisturbed(view), ExitStack() as undo:
            for layer, block in enumerate(view.blocks):
                undo.enter_context(
                    at_neurons(block, partial(self._look, layer=layer, counted=counted, numbers=text_numbers))
                )
            view.logits(batch)
        self._tokens.append(counted.sum())

    def _look(self, x: Tensor, passing: Passing, *, layer: int, counted: Tensor, numbers: Tensor) -> None:
        """Visitor of `at_neurons`: adds the activations of a part at the `counted` tokens [B, T]."""
        is_counted = passing.there(counted).to(x.device)
        x = wide(passing.spread(x.detach(), counted.shape))  # [B, T, F]
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
        """Statistics of a layer over no context, in the dtype and on the device of activations x."""
        width = self._view.neuron_names.count(layer)
        counts = partial(torch.zeros, dtype=torch.int64, device=x.device)
        of_contexts = (width, self._top)
        values = torch.full(of_contexts, -torch.inf, dtype=x.dtype, device=x.device)
        contexts = torch.full(of_contexts, NONE, device=x.device)
        total = torch.zeros(width, dtype=torch.float64, device=x.device)
        return LayerActivity(values, contexts, counts(of_contexts), total, counts((width, BINS)), counts(width))


def batch_of(texts: Sequence[Sequence[int]]) -> Batch:
    """A batch of texts, given as lists of token ids, with position and target as placeholders."""
    rows = [{"input_ids": list(ids), "position": len(ids) - 1, "target_id": 0, "foil_id": None} for ids in texts]
    return Batch.collate(rows, pad_id=0)


def counting(batch: Batch, apart: Tensor) -> Tensor:
    """True for tokens of the batch whose id is not in `apart` [N], and which are no padding: [B, T]."""
    return (batch.attention_mask != 0) & ~torch.isin(batch.input_ids, to_device(apart, batch.input_ids.device))


def _first(activity: LayerActivity, values: Tensor, contexts: Tensor, positions: Tensor, top: int) -> list[Tensor]:
    """The `top` largest of the kept [F, K] and the new [F, B] activations, with their contexts and positions.

    Of equal activations the context with the lower number comes first: so contexts are sorted by number, then, stably,
    by activation.
    """
    every = [
        torch.cat(both, 1)
        for both in ((activity.values, values), (activity.contexts, contexts), (activity.positions, positions))
    ]
    by_number = every[1].argsort(dim=1, stable=True)
    every = [column.gather(1, by_number) for column in every]
    best = every[0].argsort(dim=1, descending=True, stable=True)[:, :top]
    return [column.gather(1, best) for column in every]


def _counts(x: Tensor, is_counted: Tensor) -> Tensor:
    """Count the activations x [B, T, F] in each bin, for the tokens where `is_counted` [B, T] is True: [F, BINS + 1].

    The last column counts activations that are not finite.
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
        numbers = bins_of(part).add_(first).flatten()  # `bincount` and `x[is_counted]` would wait for the GPU
        counts.scatter_add_(0, numbers.long(), counted_part[:, None].expand_as(part).flatten().long())
    return counts.view(width, bins)


def bins_of(x: Tensor) -> Tensor:
    """The index of the bin of each activation (float32 or float64), int32; BINS for activations that are not finite.

    It equals a search in BOUNDARIES, but is faster: since boundaries are powers of two, the exponent decides.
    """
    integer, fraction, bias = (torch.int32, 23, 127) if x.dtype == torch.float32 else (torch.int64, 52, 1023)
    bits, negative = x.abs().view(integer), (x < 0).to(torch.int32)
    infinite = bits >= (2 * bias + 1 << fraction)  # infinite or NaN
    # 1 less for negative numbers, since a bin includes its lower boundary; then the biased exponent
    size = bits.sub_(negative).bitwise_right_shift_(fraction)
    size = size.sub_(bias + _POWERS.start - 1).clamp_(0, len(_POWERS)).to(torch.int32)
    return size.mul_(1 - 2 * negative).add_(len(_POWERS)).masked_fill_(infinite, BINS)
