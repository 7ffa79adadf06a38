"""What `closelook bench heads` holds methods against: bare passes, layers run token by token, matrix products."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from lrp_core import Batch, ModelView
from lrp_core.attention import around_attention
from lrp_core.parts.block import BlockView
from lrp_core.parts.linear import LinearLayer


@torch.inference_mode()
def bare(view: ModelView, batch: Batch) -> None:
    """The backbone, and the head where each sample predicts."""
    hidden = view.model.base_model(
        input_ids=batch.input_ids, attention_mask=batch.attention_mask, **view.kind.forward_options
    ).last_hidden_state
    view.unembedding(view.head(hidden[:, int(batch.position[0])]))


@torch.inference_mode()
def products(view: ModelView, length: int) -> None:
    """The products of the vectors of one sample; of the last layer at one destination, of the first without history."""
    width, heads, head_dim = view.d_model, view.n_heads, view.head_dim
    drawn = partial(torch.randn, dtype=view.dtype, device=view.device)
    value, output = drawn(width, head_dim), drawn(head_dim, width)
    weights, vectors = drawn(length, length), drawn(length, length, width)
    for index, block in enumerate(view.blocks):
        rows = 1 if index == view.n_layers - 1 else length
        for _ in range(heads):
            if index:
                values = vectors @ value  # [Tj, Tk, K]
                mixed = (weights[:rows] @ values.flatten(1)).view(-1, head_dim)
                torch.mm(mixed, output)
            else:
                torch.mm(vectors[0], value)
        _feed_forward(vectors[:rows], view, block)


def _feed_forward(vectors: Tensor, view: ModelView, block: BlockView) -> None:
    (up, _), (down, _) = (LinearLayer(m, "linear", view.family.transposed).parameters() for m in (block.up, block.down))
    for some in vectors.split(max(1, 2**24 // (vectors.shape[1] * up.shape[0]))):
        torch.matmul(torch.matmul(some, up.T), down.T)


@torch.inference_mode()
def every_layer_again(view: ModelView, batch: Batch) -> None:
    """Forwards of each block, as many as the sample has tokens."""
    calls: list[tuple[Any, Any, Any]] = []
    hooks = [
        block.module.register_forward_hook(lambda module, a, k, _: calls.append((module, a, k)), with_kwargs=True)
        for block in view.blocks
    ]
    with around_attention(view, {}):
        view.hidden(batch)
        for hook in hooks:
            hook.remove()
        for module, positional, named in calls:
            for _ in range(batch.input_ids.shape[1]):
                module(*positional, **named)
