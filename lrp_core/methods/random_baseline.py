"""Relevance drawn at random: the floor under every metric."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from lrp_core.attention import around_attention
from lrp_core.explained import without_sum
from lrp_core.types import Batch, Relevance, Request
from lrp_core.view import ModelView


@torch.no_grad()
def explain_many(
    view: ModelView, batch: Batch, requests: Sequence[Request], *, seed: int = 0
) -> dict[Request, Relevance]:
    """Uniform in [-1, 1), drawn from `seed` and the sample's own tokens, so that batching and padding change nothing.

    The model runs for its logits.
    """
    batch = batch.to(view.device)
    with around_attention(view, {}):
        logits = view.logits(view.hidden(batch), batch)
    tokens = torch.zeros(batch.input_ids.shape, dtype=logits.dtype)
    for i, mask in enumerate(batch.attention_mask.bool().cpu()):
        tokens[i, mask] = _draw(batch.input_ids[i].cpu()[mask], seed).to(tokens)
    return {request: without_sum(tokens.to(batch.input_ids.device), logits) for request in requests}


def seed_of(ids: Tensor, seed: int) -> int:
    """For what is drawn for a sample with these token ids [T] in a run with this seed, whatever batch it is in."""
    return int.from_bytes(hashlib.sha256(f"{seed}:{ids.tolist()}".encode()).digest()[:8])


def _draw(ids: Tensor, seed: int) -> Tensor:
    """One number per token id [T]."""
    return torch.from_numpy(np.random.default_rng(seed_of(ids, seed)).uniform(-1, 1, len(ids)))
