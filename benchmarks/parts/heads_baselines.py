"""The computations that `closelook bench heads` compares with.

These are bare forward passes, layers that run token by token, and matrix products alone.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.parts.samples import logits_at
from lrp_core import Batch, ModelView
from lrp_core.parts.block import BlockView
from lrp_core.parts.linear import LinearLayer
from lrp_core.readers.attention import around_attention


@torch.inference_mode()
def bare(view: ModelView, batch: Batch) -> None:
    """Runs the backbone, and the head at the position where each sample predicts."""
    logits_at(view, int(batch.position[0]), input_ids=batch.input_ids, attention_mask=batch.attention_mask)


@torch.inference_mode()
def products(view: ModelView, length: int) -> None:
    """Computes the matrix products that the vectors of one sample need, on random numbers.

    The last layer needs one destination only; before the first layer, there are no vectors of earlier layers.
    """
    drawn = partial(torch.randn, dtype=view.dtype, device=view.device)
    value, output = drawn(view.d_model, view.head_dim), drawn(view.head_dim, view.d_model)
    weights, vectors = drawn(length, length), drawn(length, length, view.d_model)
    for index, block in enumerate(view.blocks):
        rows = 1 if index == view.n_layers - 1 else length
        for _ in range(view.n_heads):
            if index:
                values = vectors @ value  # [Tj, Tk, K]
                mixed = (weights[:rows] @ values.flatten(1)).view(-1, view.head_dim)
                torch.mm(mixed, output)
            else:
                torch.mm(vectors[0], value)
        _feed_forward(vectors[:rows], view, block)


def _feed_forward(vectors: Tensor, view: ModelView, block: BlockView) -> None:
    """Multiplies vectors [Ti, Tj, D] by both matrices of the block's feed-forward network."""
    layers = [LinearLayer(module, "linear", view.family.transposed) for module in (block.up, block.down)]
    up, down = (layer.parameters()[0] for layer in layers)
    for some in vectors.split(max(1, 2**24 // (vectors.shape[1] * up.shape[0]))):
        torch.matmul(torch.matmul(some, up.T), down.T)


@torch.inference_mode()
def every_layer_again(view: ModelView, batch: Batch) -> None:
    """Runs each block once for every token of the sample."""
    calls: list[tuple[Any, Any, Any]] = []

    def record(module: Any, positional: Any, named: Any, _: Any) -> None:
        calls.append((module, positional, named))

    hooks = [block.module.register_forward_hook(record, with_kwargs=True) for block in view.blocks]
    with around_attention(view, {}):
        view.hidden(batch)
        for hook in hooks:
            hook.remove()
        for module, positional, named in calls:
            for _ in range(batch.input_ids.shape[1]):
                module(*positional, **named)
