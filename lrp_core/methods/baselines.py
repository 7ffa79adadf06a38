"""Baselines: relevance drawn at random, relevance that ignores the model, and mean attention.

Random relevance is the floor under every metric. Planted methods, which ignore the model, must fail the controls. The
mean attention from the readout position is the simplest baseline for which source was used.
"""

from __future__ import annotations

from hashlib import sha256

import numpy as np
import torch
from torch import Tensor

from closelook.lrp_core.device.precision import wide
from closelook.lrp_core.device.transfer import to_device
from closelook.lrp_core.readers.attention import weights_read
from closelook.lrp_core.records.explained import without_sum
from closelook.lrp_core.records.types import Batch, Requests, Results
from closelook.lrp_core.views.view import ModelView


@torch.no_grad()
def random_relevance(
    view: ModelView, batch: Batch, requests: Requests, *, seed: int = 0, layers: bool = False
) -> Results:
    """Relevance drawn uniformly from [-1, 1), the same for all requests.

    Draws depend on `seed` and the sample's tokens, not on batching and padding. With `layers` each layer has further
    draws. The model runs for its logits only.
    """
    on_host, batch = batch.to("cpu"), batch.to(view.device)
    logits = view.logits(batch)
    draws = 1 + (view.n_layers if layers else 0)
    drawn = torch.zeros(len(batch), draws, batch.every_id.shape[1], dtype=logits.dtype)
    for row, mask, seed_of_row in zip(drawn, on_host.every_mask.bool(), seeds_of(on_host, seed), strict=True):
        numbers = np.random.default_rng(seed_of_row).uniform(-1, 1, (draws, int(mask.sum())))
        row[:, mask] = torch.from_numpy(numbers).to(drawn)
    drawn = to_device(drawn, batch.input_ids.device)
    of_layers = drawn[:, 1:] if layers else None
    return dict.fromkeys(requests, without_sum(logits=logits, layers=of_layers, **batch.parted(drawn[:, 0])))


def _seed_of(drawn_for: bytes) -> int:
    """A seed of 64 bits from a hash of the bytes."""
    return int.from_bytes(sha256(drawn_for).digest()[:8])


def seeds_of(batch: Batch, seed: int, tokens: Tensor | None = None) -> list[int]:
    """A seed for the random numbers of each sample, from `seed` and the sample's pixels or, without pixels, token ids.

    `tokens` is a mask, laid out like `Batch.every_id`, of the tokens that count (default: all but padding).
    """
    if batch.pixel_values is not None:
        pictures = batch.pixel_values.float().cpu().numpy()
        return [_seed_of(f"{seed}:".encode() + picture.tobytes()) for picture in pictures]
    tokens = batch.every_mask.bool() if tokens is None else tokens
    ids = [row[mask].tolist() for row, mask in zip(batch.every_id.cpu(), tokens.cpu(), strict=True)]
    return [_seed_of(f"{seed}:{of_row}".encode()) for of_row in ids]


# relevance that ignores the model, to test the controls with


def position_only(view: ModelView, batch: Batch, requests: Requests) -> Results:
    """Relevance is a token's number in its text, from 1; the decoder's text has its own count, and padding has 0."""
    masks = (batch.attention_mask, batch.decoder_attention_mask)
    counted = [mask.cumsum(-1) for mask in masks if mask is not None]
    return _planted(view, batch, requests, torch.cat(counted, 1))


def constant(view: ModelView, batch: Batch, requests: Requests) -> Results:
    """Relevance is 1 for every token, and 0 on padding."""
    return _planted(view, batch, requests, torch.ones_like(batch.every_id))


def frequency(view: ModelView, batch: Batch, requests: Requests) -> Results:
    """Relevance is log(1 + id) of each token, since tokenizers number frequent tokens first. Patches have id 0."""
    return _planted(view, batch, requests, batch.every_id.double().log1p())


@torch.no_grad()
def _planted(view: ModelView, batch: Batch, requests: Requests, relevance: Tensor) -> Results:
    """The same `relevance`, laid out like `Batch.every_id`, for all requests. The model runs for its logits only."""
    kept = relevance.masked_fill(batch.every_mask == 0, 0)
    batch = batch.to(view.device)
    logits = view.logits(batch)
    return dict.fromkeys(requests, without_sum(logits=logits, **batch.parted(kept.to(logits))))


@torch.no_grad()
def attention_share(view: ModelView, batch: Batch, requests: Requests) -> Results:
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
        logits = view.logits(batch)
    tokens = shares.masked_fill(batch.every_mask == 0, 0).to(batch.input_ids.device, logits.dtype)
    return dict.fromkeys(requests, without_sum(logits=logits, **batch.parted(tokens)))


def _layers(view: ModelView) -> tuple[range, range]:
    """Indices of the attention layers in which a prediction attends to the text, and to the decoder's own tokens."""
    every = len(view.attentions)
    if not view.kind.decoder:
        return range(every), range(0)
    cross = every - len(view.attentions_over_text) + view.n_shared_layers
    return range(cross, every), range(view.n_shared_layers, cross)
