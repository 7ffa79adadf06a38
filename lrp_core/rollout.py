"""Attention rollout (Abnar & Zuidema 2020): how much of each token is mixed into the predicted position."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from lrp_core.attention import Kernel, around_attention
from lrp_core.capabilities import ATTENTION
from lrp_core.explained import whichever
from lrp_core.method import Method
from lrp_core.types import Batch, Relevance, Request
from lrp_core.view import ModelView


class _Mixing:
    """Product over the layers so far of (A + I) / 2, heads averaged, [B, T, T]; no layer's attention is kept."""

    def __init__(self, length: int) -> None:
        self.total = torch.eye(length)

    def __call__(
        self, kernel: Kernel, module: nn.Module, *tensors: Any, **options: Any
    ) -> tuple[Tensor, Tensor | None]:
        context, weights = kernel(module, *tensors, **options)
        assert weights is not None  # the eager kernel returns them
        step = weights.mean(1)  # [B, T, T]
        step.diagonal(dim1=-2, dim2=-1).add_(1)
        self.total = step.mul_(0.5) @ self.total.to(step)
        return context, weights


@torch.no_grad()
def explain_many(view: ModelView, batch: Batch, requests: Sequence[Request]) -> dict[Request, Relevance]:
    """The row of the predicted position, whatever is explained.

    Runs the model's eager attention, for its weights.
    """
    batch = batch.to(view.device)
    mixing = _Mixing(batch.input_ids.shape[1])
    with around_attention(view, {block.attention: mixing for block in view.blocks}, stock="eager"):
        logits = view.logits(view.hidden(batch), batch)
    row = mixing.total[torch.arange(len(batch), device=mixing.total.device), batch.position.to(mixing.total.device)]
    tokens = row.to(batch.input_ids.device, logits.dtype).masked_fill(batch.attention_mask == 0, 0)
    return {request: without_sum(tokens, logits) for request in requests}


METHOD = Method(
    "attention_rollout",
    version=1,
    label="AttnRollout",
    explain=explain_many,
    family="attention",
    needs=(ATTENTION,),
    explanations=("none",),
    embeddings=("none",),
    conserves=False,
    passes="rollout",
    forwards=1.2,
    order=60,
    source="Abnar & Zuidema 2020",
)


def without_sum(tokens: Tensor, logits: Tensor) -> Relevance:
    """Relevance of a method that promises no sum, from tokens [B, T] and logits [B, 2] (or [B, 1] without foils)."""
    foil = logits[:, 1] if logits.shape[1] == 2 else None
    return Relevance(tokens, whichever(foil is not None).of(logits), logits[:, 0], foil, conserves=False)
