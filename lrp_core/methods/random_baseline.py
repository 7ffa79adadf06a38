"""Relevance drawn at random: the floor under every metric."""

from __future__ import annotations

from hashlib import sha256

import numpy as np
import torch
from torch import Tensor

from lrp_core.device.transfer import to_device
from lrp_core.readers.attention import around_attention
from lrp_core.records.explained import without_sum
from lrp_core.records.types import Batch, Requests, Results
from lrp_core.views.view import ModelView


@torch.no_grad()
def explain_many(view: ModelView, batch: Batch, requests: Requests, *, seed: int = 0, layers: bool = False) -> Results:
    """Relevance drawn uniformly from [-1, 1), the same for all requests.

    Draws depend on `seed` and the sample's tokens, not on batching and padding. With `layers` each layer has further
    draws. The model runs for its logits only.
    """
    on_host, batch = batch.to("cpu"), batch.to(view.device)
    with around_attention(view, {}):
        logits = view.logits(view.hidden(batch), batch)
    draws = 1 + (view.n_layers if layers else 0)
    drawn = torch.zeros(len(batch), draws, batch.every_id.shape[1], dtype=logits.dtype)
    for row, mask, seed_of_row in zip(drawn, on_host.every_mask.bool(), seeds_of(on_host, seed), strict=True):
        numbers = np.random.default_rng(seed_of_row).uniform(-1, 1, (draws, int(mask.sum())))
        row[:, mask] = torch.from_numpy(numbers).to(drawn)
    drawn = to_device(drawn, batch.input_ids.device)
    parts = batch.parted(drawn[:, 0])
    result = without_sum(logits=logits, layers=drawn[:, 1:] if layers else None, **parts)
    return dict.fromkeys(requests, result)


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
