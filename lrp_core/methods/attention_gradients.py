"""Attention maps weighted by their gradients: Grad x Attention Rollout and Grad-CAM.

Runs the model's eager attention, for its weights.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from closelook.lrp_core.device.precision import wide, wide_dtype
from closelook.lrp_core.methods.rollout import CrossRollout, discard, of_itself, visible
from closelook.lrp_core.operations.forward import explained_numbers
from closelook.lrp_core.readers.attention import Attended, Kernel, around_attention
from closelook.lrp_core.records.explained import explanations_of, relevance_of
from closelook.lrp_core.records.types import Batch, Relevance, Requests, Results
from closelook.lrp_core.views.encoder_decoder import EncoderDecoderView
from closelook.lrp_core.views.view import ModelView


@dataclass(frozen=True)
class AttentionMap:
    """The weights of an attention layer and their gradient, both [B, H, queries, keys]."""

    layer: int
    weights: Tensor
    shown: Tensor  # [B, queries, keys], True for entries that the prediction may depend on
    gradient: Tensor

    def step(self, threshold: float, lowest: float) -> Tensor:
        """E_h[(A * dA)+] [B, queries, keys], with outliers set to 0 as in :func:`discard`."""
        step = (wide(self.weights) * wide(self.gradient)).clamp_min_(0).mean(1)
        return discard(step, self.shown, threshold, lowest) if threshold < 1 or lowest > 0 else step


@dataclass(frozen=True)
class Explained:
    """Logits [B, 2] of target and foil, an explained number [B], and attention maps in the order of the forward."""

    explanation: str
    logits: Tensor
    number: Tensor
    maps: list[AttentionMap]


def grad_attention_rollout(
    view: ModelView, batch: Batch, requests: Requests, *, discard_threshold: float, lowest: float, itself: str
) -> Results:
    """The readout position's row of the product of I + E_h[(A * dA)+] over layers (AttnLRP A.1.4).

    A is an attention map, dA its gradient, E_h the mean over heads. Rows are not normalised. The row is multiplied by
    one layer's map after the other, from the top layer down; no product of maps is formed. Encoder-decoders use
    `CrossRollout`. `itself` says what the readout position has (see `of_itself`). For a span the gradient is that of
    the weighted sum, and the row the weighted mean over its positions.
    """
    batch = batch.to(view.device)
    results: dict[str, Relevance] = {}
    for explained in _explained(view, batch, requests, range(view.n_layers)):
        if isinstance(view, EncoderDecoderView):
            rollout = CrossRollout(view, batch)
            for each in explained.maps:
                rollout.mix(each.layer, each.step(discard_threshold, lowest))
            parts = rollout.parts(itself)
        else:
            reading = batch.reading(wide_dtype(view.dtype))
            whole, attended = reading, torch.zeros_like(reading)  # the row of the product, and without the identity's
            for each in reversed(explained.maps):
                step = each.step(discard_threshold, lowest)
                brought = torch.einsum("bq,bqk->bk", whole.to(step.device), step)
                whole, attended = whole.to(step.device) + brought, attended.to(step.device) + brought
            parts = {"tokens": of_itself(whole, attended, reading, itself)}
        results[explained.explanation] = _relevance(batch, explained, parts)
    return {request: results[request.explanation] for request in requests}


def gradcam(view: ModelView, batch: Batch, requests: Requests) -> Results:
    """The readout position's row of (E_h[A * mean(dA)])+ of the last layer (Chefer et al. 2021).

    The mean of a head's gradient dA is over its whole map, in causal models up to the readout position. For images it
    is over the class token's attention to patches, and the class token gets 0. The paper's min-max normalisation does
    not change ranks and is left out. In an encoder-decoder the layer is the last cross-attention, and decoder tokens
    get no relevance. For a span the row is the weighted mean over its positions.
    """
    batch = batch.to(view.device)
    last = view.n_layers - 1
    keys = view.visible(batch)[:, : batch.input_ids.shape[1]].sum(-1)
    sizes = keys * view.asking(batch, last).sum(-1)  # [B], entries of a head's map that are not masked
    results: dict[str, Relevance] = {}
    for explained in _explained(view, batch, requests, [last]):
        (of_last,) = explained.maps
        weights, gradient = wide(of_last.weights), wide(of_last.gradient)
        reading = batch.reading(weights.dtype).to(weights.device)
        row = torch.einsum("bq,bhqk->bhk", reading, weights)
        if view.kind.images:
            of_head = torch.einsum("bq,bhqk->bhk", reading, gradient)[..., 1:].mean(-1)  # [B, H]
            row = row.index_fill(-1, torch.zeros(1, dtype=torch.int64, device=row.device), 0)
        else:
            total = (gradient * of_last.shown[:, None]).sum((2, 3))
            of_head = total / sizes.to(weights.device)[:, None].clamp_min(1)
        tokens = (row * of_head[..., None]).mean(1).clamp_min(0)
        results[explained.explanation] = _relevance(batch, explained, {"tokens": tokens})
    return {request: results[request.explanation] for request in requests}


def _relevance(batch: Batch, explained: Explained, parts: dict[str, Tensor]) -> Relevance:
    """The relevance of tokens, 0 on padding, and of the decoder's tokens, from `parts`."""
    parts["tokens"] = parts["tokens"].to(batch.input_ids.device).masked_fill(batch.attention_mask == 0, 0)
    return relevance_of(logits=explained.logits, explained=explained.number, conserves=False, **parts)


def _explained(view: ModelView, batch: Batch, requests: Requests, layers: Sequence[int]) -> Iterator[Explained]:
    """Yield each explanation with the maps of `layers` and their gradients, from one forward pass."""
    weights: dict[int, Tensor] = {}
    shown: dict[int, Tensor] = {}

    def attend(kernel: Kernel, module: nn.Module, query: Tensor, *tensors: Any, layer: int, **options: Any) -> Attended:
        if not query.requires_grad:  # in the lowest layer that is read, below which no gradient is needed
            query = query.detach().requires_grad_()
        context, of_layer = kernel(module, query, *tensors, **options)
        assert of_layer is not None  # the eager kernel returns them
        weights[layer], shown[layer] = of_layer, visible(tensors[2], view.asking(batch, layer), of_layer)
        return context, of_layer

    around = {view.attentions[layer].attention: partial(attend, layer=layer) for layer in layers}
    with torch.enable_grad(), around_attention(view, around, stock="eager"):
        logits, numbers = explained_numbers(view, batch, explanations_of(requests))
    for at, (explanation, number) in enumerate(numbers.items(), start=1):
        gradients = torch.autograd.grad(number.sum(), list(weights.values()), retain_graph=at < len(numbers))
        maps = []
        for (layer, of_layer), gradient in zip(weights.items(), gradients, strict=True):
            maps.append(AttentionMap(layer, of_layer.detach(), shown[layer], gradient))
        yield Explained(explanation, logits, number, maps)
