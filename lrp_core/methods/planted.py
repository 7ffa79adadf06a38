"""Relevance that ignores the model, to test the controls with: by position, by token id, and the same for all."""

from __future__ import annotations

import torch
from torch import Tensor

from lrp_core.readers.attention import around_attention
from lrp_core.records.explained import without_sum
from lrp_core.records.types import Batch, Requests, Results
from lrp_core.views.view import ModelView, counted_by


def position_only(view: ModelView, batch: Batch, requests: Requests) -> Results:
    """Relevance is a token's number in its text, from 1; the decoder's text has its own count, and padding has 0."""
    masks = (batch.attention_mask, batch.decoder_attention_mask)
    counted = [1 + counted_by(mask) for mask in masks if mask is not None]
    return _results(view, batch, requests, torch.cat(counted, 1))


def constant(view: ModelView, batch: Batch, requests: Requests) -> Results:
    """Relevance is 1 for every token, and 0 on padding."""
    return _results(view, batch, requests, torch.ones_like(batch.every_id))


def frequency(view: ModelView, batch: Batch, requests: Requests) -> Results:
    """Relevance is log(1 + id) of each token, since tokenizers number frequent tokens first. Patches have id 0."""
    return _results(view, batch, requests, batch.every_id.double().log1p())


@torch.no_grad()
def _results(view: ModelView, batch: Batch, requests: Requests, relevance: Tensor) -> Results:
    """The same `relevance`, laid out like `Batch.every_id`, for all requests. The model runs for its logits only."""
    kept = relevance.masked_fill(batch.every_mask == 0, 0)
    batch = batch.to(view.device)
    with around_attention(view, {}):
        logits = view.logits(view.hidden(batch), batch)
    result = without_sum(logits=logits, **batch.parted(kept.to(logits)))
    return dict.fromkeys(requests, result)
