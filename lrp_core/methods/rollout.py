"""Attention rollout (Abnar & Zuidema 2020): how much of each token is mixed into the predicted position."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from lrp_core.device.precision import wide, wide_dtype
from lrp_core.methods import ATTENDED, IDENTITY, LEFT_OUT
from lrp_core.readers.attention import weights_read
from lrp_core.records.explained import without_sum
from lrp_core.records.types import Batch, Request, Results
from lrp_core.views.encoder_decoder import EncoderDecoderView
from lrp_core.views.view import ModelView


@torch.no_grad()
def explain_many(
    view: ModelView, batch: Batch, requests: Sequence[Request], *, discard_threshold: float = 1.0, lowest: float = 0.0
) -> Results:
    """The row of the predicted position, whatever is explained.

    Runs the model's eager attention, for its weights. Where the lowest entries are set to 0, rows are brought back to a
    sum of 1, as Gildenblat's code does; otherwise they are as they come (AttnLRP equation 23). Encoder-decoders have
    `CrossRollout`, of maps without the identity.
    """
    batch = batch.to(view.device)
    rollout = CrossRollout(view, batch) if isinstance(view, EncoderDecoderView) else Rollout(batch)

    def read(layer: int, weights: Tensor, mask: Tensor | None) -> None:
        step = weights.mean(1)  # [B, queries, keys]
        if discard_threshold < 1 or lowest > 0:
            shown = visible(mask, view.asking(batch, layer), weights)
            step = discard(step, shown, discard_threshold, lowest)
        rollout.mix(layer, step, rows_to_one=lowest > 0)

    with weights_read(view, read):
        logits = view.logits(view.hidden(batch), batch)
    parts = {name: rows.to(batch.input_ids.device, logits.dtype) for name, rows in rollout.parts().items()}
    return {request: without_sum(logits=logits, **parts) for request in requests}


class Rollout:
    """Product over the layers so far of (A + I) / 2, heads averaged, [B, T, T]; no layer's attention is kept."""

    def __init__(self, batch: Batch) -> None:
        self.total = torch.eye(batch.input_ids.shape[1])
        self._batch = batch

    def mix(self, _: int, step: Tensor, rows_to_one: bool) -> None:
        """Multiply by the map `step` [B, T, T] of the next layer, which is changed in place."""
        step.diagonal(dim1=-2, dim2=-1).add_(1)
        step = step.div_(step.sum(-1, keepdim=True)) if rows_to_one else step.mul_(0.5)
        self.total = step @ self.total.to(step)

    def parts(self) -> dict[str, Tensor]:
        """The rows of the predicted positions, the mean of a span's, as fields of a Relevance."""
        reading = self._batch.reading(self.total.dtype).to(self.total.device)
        row = torch.einsum("bq,bqk->bk", reading, self.total)
        return {"tokens": row.masked_fill(self._batch.attention_mask.to(row.device) == 0, 0)}


class CrossRollout:
    """The mixture of encoder and decoder tokens in each decoder token (Chefer et al. 2021, section 3, and their code).

    Layers come in the order of the forward; maps are means over heads, whatever they were weighted with. In a
    stack's own attention R += A R; where the decoder reads the encoder R_qi += norm(R_qq)^T A norm(R_ii), with
    norm(R) = I + the rest of R, its rows brought to a sum of 1 (0 where they have none). Decoder tokens behind the
    prediction, which it cannot see, have no part: the transpose would let them in.
    """

    def __init__(self, view: EncoderDecoderView, batch: Batch) -> None:
        rows, width = batch.input_ids.shape
        mixed = torch.zeros(rows, batch.every_id.shape[1] - width, width, dtype=wide_dtype(view.dtype))
        self.mixed = mixed.to(batch.input_ids.device)  # [B, U, T]
        self.of_encoder, self.of_decoder = (
            torch.eye(size).to(self.mixed).repeat(rows, 1, 1) for size in (width, mixed.shape[1])
        )
        self.attended = torch.zeros_like(self.of_decoder)  # that without the identity, all of whose digits it keeps
        self._batch, self._encoder = batch, view.n_encoder_layers
        self._asking = view.asking(batch, view.n_encoder_layers)[..., None]  # [B, U, 1]
        self._cross = len(view.attentions) - len(view.cross_attentions)

    def mix(self, layer: int, step: Tensor, rows_to_one: bool = False) -> None:
        """`step` [B, queries, keys] is the map of attention `layer`, on the axis of `view.attentions`."""
        if rows_to_one:
            step = step / step.sum(-1, keepdim=True).clamp_min(torch.finfo(step.dtype).tiny)
        step = step.to(self.mixed)
        if layer < self._encoder:
            self.of_encoder = self.of_encoder + step @ self.of_encoder
            return
        step = step * self._asking
        if layer < self._cross:
            self.mixed = self.mixed + step @ self.mixed
            attended = step @ self.of_decoder
            self.of_decoder, self.attended = self.of_decoder + attended, self.attended + attended
        else:
            read = step @ _rows_to_one(self.of_encoder)
            self.mixed = self.mixed + _rows_to_one(self.of_decoder).transpose(1, 2) @ read

    def parts(self, itself: str = IDENTITY) -> dict[str, Tensor]:
        """As `Rollout.parts`; `itself` as for `of_itself`."""
        batch = self._batch
        reading = batch.reading(self.mixed.dtype)  # [B, U]
        maps = (self.mixed, self.of_decoder, self.attended)
        mixed, of_decoder, attended = (torch.einsum("bq,bqk->bk", reading, rows) for rows in maps)
        rows = torch.cat([mixed, of_itself(of_decoder, attended, reading, itself)], 1)
        return batch.parted(rows.masked_fill(batch.every_mask == 0, 0))


def of_itself(whole: Tensor, attended: Tensor, reading: Tensor, itself: str) -> Tensor:
    """Rows [B, T] of a rollout, with the treatment `itself` of readout positions (`reading` [B, T] > 0).

    `whole` has the identity that is added to maps, `attended` what attention brought alone: they differ in these.
    """
    if itself == LEFT_OUT:
        return whole.masked_fill(reading.to(whole.device) > 0, 0)
    return attended if itself == ATTENDED else whole


def _rows_to_one(maps: Tensor) -> Tensor:
    """I + what else is in each row of [B, N, N], divided by its sum."""
    identity = torch.eye(maps.shape[1], dtype=maps.dtype, device=maps.device)
    rest = maps - identity
    total = rest.sum(-1, keepdim=True)
    return identity + torch.where(total == 0, 0, rest / total)


def visible(mask: Tensor | None, asks: Tensor, weights: Tensor) -> Tensor:
    """Entries of attention maps [B, queries, keys] that a query, by the mask `asks` [B, queries], may look at, by the
    additive `mask` of an eager kernel.
    """
    queries = asks.bool().to(weights.device)[:, :, None]
    if mask is None:
        return queries.expand(weights.shape[0], *weights.shape[2:])
    return queries & (mask[:, 0] == 0)


def discard(maps: Tensor, shown: Tensor, threshold: float, lowest: float) -> Tensor:
    """Maps [B, T, T] with outliers set to 0: entries above the quantile `threshold`, and the share `lowest` from below.

    Quantiles and shares are those of a sample's `shown` entries, in causal models those of queries up to the
    prediction. AttnLRP A.1.4 prints the former; Gildenblat's code, which it cites, does the latter, and ties are then
    broken by position.
    """
    values = maps.masked_fill(~shown, torch.inf).flatten(1)  # [B, T * T]
    order = values.argsort(dim=1, stable=True)
    count = shown.flatten(1).sum(1, keepdim=True)
    ranks = torch.arange(order.shape[1], device=order.device).expand_as(order)
    rank = torch.empty_like(order).scatter_(1, order, ranks)
    kept = rank >= (lowest * count.double()).long()
    if threshold < 1:
        kept &= values <= _quantile(values.gather(1, order), count, threshold)
    return torch.where(shown, maps * kept.view_as(maps), maps)


def _quantile(ordered: Tensor, count: Tensor, share: float) -> Tensor:
    """Of the first `count` [B, 1] of each row [B, N], [B, 1], between neighbours by linear interpolation; torch's own
    takes no more than 2^24 values and no half precision.
    """
    last = (count - 1).clamp_min(0)
    position = share * last.double()
    at = position.long()
    below, above = ordered.gather(1, at), ordered.gather(1, torch.minimum(at + 1, last))
    gap = wide(above - below)
    return below + (gap * (position - at).to(gap)).to(ordered.dtype)
