"""Attention rollout (Abnar & Zuidema 2020): how much of each token is mixed into the predicted position."""

from __future__ import annotations

import torch
from torch import Tensor

from closelook.lrp_core.device.precision import wide, wide_dtype
from closelook.lrp_core.methods import ATTENDED, IDENTITY, LEFT_OUT
from closelook.lrp_core.readers.attention import weights_read
from closelook.lrp_core.records.explained import without_sum
from closelook.lrp_core.records.types import Batch, Requests, Results
from closelook.lrp_core.views.encoder_decoder import EncoderDecoderView
from closelook.lrp_core.views.view import ModelView


@torch.no_grad()
def explain_many(
    view: ModelView, batch: Batch, requests: Requests, *, discard_threshold: float = 1.0, lowest: float = 0.0
) -> Results:
    """Attention rollout: the readout position's row of the product of all layers' attention maps.

    It is the same for all requests. Maps are means over heads, and eager attention computes them. With `lowest` above 0
    rows are normalised to a sum of 1, as Gildenblat's code does; otherwise they are not (AttnLRP equation 23).
    Encoder-decoders use `CrossRollout`.
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
        logits = view.logits(batch)
    parts = {name: rows.to(batch.input_ids.device, logits.dtype) for name, rows in rollout.parts().items()}
    return {request: without_sum(logits=logits, **parts) for request in requests}


class Rollout:
    """The product of (A + I) / 2 over the layers so far, [B, T, T]; A is a layer's mean attention map over heads."""

    def __init__(self, batch: Batch) -> None:
        self.total = torch.eye(batch.input_ids.shape[1])
        self._batch = batch

    def mix(self, _: int, step: Tensor, rows_to_one: bool) -> None:
        """Multiply the product by (A + I) / 2 of the next layer, whose map A is `step` [B, T, T], changed in place.

        With `rows_to_one` each row of A + I is divided by its sum instead of by 2. The layer's number is not needed.
        """
        step.diagonal(dim1=-2, dim2=-1).add_(1)
        step = step.div_(step.sum(-1, keepdim=True)) if rows_to_one else step.mul_(0.5)
        self.total = step @ self.total.to(step)

    def parts(self) -> dict[str, Tensor]:
        """The share of each token that is mixed into the readout position [B, T], 0 on padding, as field `tokens`.

        For a span it is the mean over its positions, weighted as its tokens are.
        """
        reading = self._batch.reading(self.total.dtype).to(self.total.device)
        row = torch.einsum("bq,bqk->bk", reading, self.total)
        return {"tokens": row.masked_fill(self._batch.attention_mask.to(row.device) == 0, 0)}


class CrossRollout:
    """Rollout of an encoder-decoder: how much of each token is mixed into each decoder token (Chefer et al. 2021, 3).

    `mix` takes the layers in the order of the forward, as maps A that are means over heads. Self-attention adds A R to
    the stack's R. Cross-attention adds norm(R_qq)^T A norm(R_ii) to R_qi (q: decoder, i: encoder), where norm(R) is
    I + (R - I) with the rows of R - I divided by their sum (0 for rows that sum to 0), as in their code. Decoder tokens
    after the readout position are masked, since the transpose would let them in.
    """

    def __init__(self, view: EncoderDecoderView, batch: Batch) -> None:
        rows, width = batch.input_ids.shape
        mixed = torch.zeros(rows, batch.every_id.shape[1] - width, width, dtype=wide_dtype(view.dtype))
        self.mixed = mixed.to(batch.input_ids.device)  # [B, U, T]
        self.of_encoder = torch.eye(width).to(self.mixed).repeat(rows, 1, 1)
        self.of_decoder = torch.eye(mixed.shape[1]).to(self.mixed).repeat(rows, 1, 1)
        self.attended = torch.zeros_like(self.of_decoder)  # of_decoder - I, without the rounding of that subtraction
        self._batch, self._encoder = batch, view.n_encoder_layers
        self._asking = view.asking(batch, view.n_encoder_layers)[..., None]  # [B, U, 1]
        self._cross = len(view.attentions) - len(view.cross_attentions)

    def mix(self, layer: int, step: Tensor, rows_to_one: bool = False) -> None:
        """Add the next attention layer: its map `step` [B, queries, keys], and its index in `view.attentions`.

        With `rows_to_one` the rows of the map are divided by their sum first.
        """
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
        """As `Rollout.parts`, for the fields `tokens` and `decoder_tokens`; `itself` as in :func:`of_itself`."""
        batch = self._batch
        reading = batch.reading(self.mixed.dtype)  # [B, U]
        maps = (self.mixed, self.of_decoder, self.attended)
        mixed, of_decoder, attended = (torch.einsum("bq,bqk->bk", reading, rows) for rows in maps)
        rows = torch.cat([mixed, of_itself(of_decoder, attended, reading, itself)], 1)
        return batch.parted(rows.masked_fill(batch.every_mask == 0, 0))


def of_itself(whole: Tensor, attended: Tensor, reading: Tensor, itself: str) -> Tensor:
    """Choose what the readout positions (`reading` [B, T] > 0) themselves have in the rows [B, T] of a rollout.

    LEFT_OUT gives them 0, ATTENDED only what attention adds (the rows `attended`), IDENTITY the identity that is added
    to maps as well (the rows `whole`). Other positions have the same in all three.
    """
    if itself == LEFT_OUT:
        return whole.masked_fill(reading.to(whole.device) > 0, 0)
    return attended if itself == ATTENDED else whole


def _rows_to_one(maps: Tensor) -> Tensor:
    """Maps R [B, N, N] as I + (R - I), with each row of R - I divided by its sum (0 for rows that sum to 0)."""
    identity = torch.eye(maps.shape[1], dtype=maps.dtype, device=maps.device)
    rest = maps - identity
    total = rest.sum(-1, keepdim=True)
    return identity + torch.where(total == 0, 0, rest / total)


def visible(mask: Tensor | None, asks: Tensor, weights: Tensor) -> Tensor:
    """True at the entries of attention maps [B, queries, keys] that are unmasked and belong to a query in `asks`.

    `mask` [B, 1, queries, keys] is the additive mask of the eager kernel (None: nothing is masked), `asks`
    [B, queries] the queries that count, `weights` [B, H, queries, keys] give the shape and device.
    """
    queries = asks.bool().to(weights.device)[:, :, None]
    if mask is None:
        return queries.expand(weights.shape[0], *weights.shape[2:])
    return queries & (mask[:, 0] == 0)


def discard(maps: Tensor, shown: Tensor, threshold: float, lowest: float) -> Tensor:
    """Maps [B, T, T] with outliers set to 0: entries above the quantile `threshold`, and the lowest share `lowest`.

    Both are taken over a sample's `shown` entries; other entries stay. AttnLRP A.1.4 prints the first; Gildenblat's
    code, which it cites, does the second. Of equal entries the earlier in the map counts as lower.
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
    """The quantile `share` of the first `count` [B, 1] values of each sorted row [B, N], interpolated linearly: [B, 1].

    `torch.quantile` takes at most 2^24 values and no half precision.
    """
    last = (count - 1).clamp_min(0)
    position = share * last.double()
    at = position.long()
    below, above = ordered.gather(1, at), ordered.gather(1, torch.minimum(at + 1, last))
    gap = wide(above - below)
    return below + (gap * (position - at).to(gap)).to(ordered.dtype)
