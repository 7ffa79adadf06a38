"""Attention rollout (Abnar & Zuidema 2020): how much of each token is mixed into the predicted position."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from lrp_core.attention import Kernel, around_attention
from lrp_core.encoder_decoder import EncoderDecoderView
from lrp_core.explained import without_sum
from lrp_core.methods.cross_rollout import CrossRollout
from lrp_core.types import Batch, Relevance, Request
from lrp_core.view import ModelView


class _Mixing:
    """Product over the layers so far of (A + I) / 2, heads averaged, [B, T, T]; no layer's attention is kept."""

    def __init__(self, asks: Tensor, discard_threshold: float, lowest: float) -> None:
        """`asks` [B, T] are the queries whose entries are counted where some are discarded."""
        self.total = torch.eye(asks.shape[1])
        self._asks, self._threshold, self._lowest = asks, discard_threshold, lowest

    def __call__(
        self, kernel: Kernel, module: nn.Module, *tensors: Any, **options: Any
    ) -> tuple[Tensor, Tensor | None]:
        context, weights = kernel(module, *tensors, **options)
        assert weights is not None  # the eager kernel returns them
        step = weights.mean(1)  # [B, T, T]
        if self._threshold < 1 or self._lowest > 0:
            step = discard(step, visible(tensors[3], self._asks, weights), self._threshold, self._lowest)
        step.diagonal(dim1=-2, dim2=-1).add_(1)
        step = step.div_(step.sum(-1, keepdim=True)) if self._lowest else step.mul_(0.5)
        self.total = step @ self.total.to(step)
        return context, weights


@torch.no_grad()
def explain_many(
    view: ModelView, batch: Batch, requests: Sequence[Request], *, discard_threshold: float = 1.0, lowest: float = 0.0
) -> dict[Request, Relevance]:
    """The row of the predicted position, whatever is explained.

    Runs the model's eager attention, for its weights. Where the lowest entries are set to 0, rows are brought back to a
    sum of 1, as Gildenblat's code does; otherwise they are as they come (AttnLRP equation 23). Encoder-decoders have
    `CrossRollout`, of maps without the identity.
    """
    batch = batch.to(view.device)
    if isinstance(view, EncoderDecoderView):
        return _over_both(view, batch, requests, discard_threshold, lowest)
    mixing = _Mixing(view.visible(batch), discard_threshold, lowest)
    with around_attention(view, {block.attention: mixing for block in view.blocks}, stock="eager"):
        logits = view.logits(view.hidden(batch), batch)
    row = mixing.total[torch.arange(len(batch), device=mixing.total.device), batch.position.to(mixing.total.device)]
    tokens = row.to(batch.input_ids.device, logits.dtype).masked_fill(batch.attention_mask == 0, 0)
    return {request: without_sum(tokens, logits) for request in requests}


def _over_both(
    view: EncoderDecoderView, batch: Batch, requests: Sequence[Request], threshold: float, lowest: float
) -> dict[Request, Relevance]:
    rollout = CrossRollout(view, batch, torch.promote_types(view.dtype, torch.float32))

    def attend(kernel: Kernel, module: nn.Module, *tensors: Any, layer: int, **options: Any) -> Any:
        context, weights = kernel(module, *tensors, **options)
        assert weights is not None  # the eager kernel returns them
        step = weights.mean(1)  # [B, queries, keys]
        if threshold < 1 or lowest > 0:
            step = discard(step, visible(tensors[3], view.asking(batch, layer), weights), threshold, lowest)
            step = step / step.sum(-1, keepdim=True).clamp_min(torch.finfo(step.dtype).tiny) if lowest else step
        rollout.add(layer, step)
        return context, weights

    around = {one.attention: partial(attend, layer=layer) for layer, one in enumerate(view.attentions)}
    with around_attention(view, around, stock="eager"):
        logits = view.logits(view.hidden(batch), batch)
    parts = {name: rows.to(logits.dtype) for name, rows in rollout.parts().items()}
    return {request: without_sum(logits=logits, **parts) for request in requests}


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
    rank = torch.empty_like(order).scatter_(
        1, order, torch.arange(order.shape[1], device=order.device).expand_as(order)
    )
    kept = rank >= (lowest * count.double()).long()
    if threshold < 1:
        kept &= values <= _quantile(values.gather(1, order), count, threshold)
    return torch.where(shown, maps * kept.view_as(maps), maps)


def _quantile(ordered: Tensor, count: Tensor, share: float) -> Tensor:
    """Of the first `count` [B, 1] of each row [B, N], [B, 1], between neighbours by linear interpolation; torch's own
    takes no more than 2^24 values and no half precision.
    """
    position = share * (count - 1).clamp_min(0).double()
    at = position.long()
    below, above = ordered.gather(1, at), ordered.gather(1, torch.minimum(at + 1, (count - 1).clamp_min(0)))
    wide = torch.promote_types(ordered.dtype, torch.float32)
    return below + ((above - below).to(wide) * (position - at).to(wide)).to(ordered.dtype)
