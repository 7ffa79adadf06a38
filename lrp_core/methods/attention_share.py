"""Mean attention from the readout position to each token: the simplest baseline for which source was used."""

from __future__ import annotations

import torch
from torch import Tensor

from lrp_core.device.precision import wide
from lrp_core.readers.attention import weights_read
from lrp_core.records.explained import without_sum
from lrp_core.records.types import Batch, Requests, Results
from lrp_core.views.view import ModelView


@torch.no_grad()
def explain_many(view: ModelView, batch: Batch, requests: Requests) -> Results:
    """Attention from the readout position to each token, the mean over layers and heads; the same for all requests.

    For a span it is the weighted mean over its positions. In an encoder-decoder, encoder tokens have the mean of
    cross-attention and decoder tokens that of the decoder's self-attention. Runs the model's eager attention.
    """
    batch = batch.to(view.device)
    over_text, over_said = _layers(view)  # layers that attend to the text, and to the decoder's own tokens
    width = batch.input_ids.shape[1]
    shares = torch.zeros(batch.every_id.shape, dtype=torch.float64, device=view.device)

    def read(layer: int, weights: Tensor, _: Tensor | None) -> None:
        layers, columns = (over_text, slice(width)) if layer in over_text else (over_said, slice(width, None))
        if layer not in layers:
            return
        mean = wide(weights).mean(1)  # [B, queries, keys]
        share = torch.einsum("bq,bqk->bk", reading.to(mean), mean) / len(layers)
        shares[:, columns] += share.to(shares)

    reading = batch.reading(torch.float64)
    with weights_read(view, read):
        logits = view.logits(view.hidden(batch), batch)
    tokens = shares.masked_fill(batch.every_mask == 0, 0).to(batch.input_ids.device, logits.dtype)
    result = without_sum(logits=logits, **batch.parted(tokens))
    return dict.fromkeys(requests, result)


def _layers(view: ModelView) -> tuple[range, range]:
    """Indices of the attention layers in which a prediction attends to the text, and to the decoder's own tokens."""
    every = len(view.attentions)
    if not view.kind.decoder:
        return range(every), range(0)
    cross = every - len(view.attentions_over_text) + view.n_shared_layers
    return range(cross, every), range(view.n_shared_layers, cross)
