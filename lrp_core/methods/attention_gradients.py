"""Attention maps weighted by their gradients: Grad x Attention Rollout and Grad-CAM.

Runs the model's eager attention, for its weights.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from closelook.lrp_core.device.precision import wide, wide_dtype
from closelook.lrp_core.methods.rollout import CrossRollout, discard, of_itself, visible
from closelook.lrp_core.readers.attention import Attended, Kernel, around_attention, weights_read
from closelook.lrp_core.readers.readout import explained_numbers
from closelook.lrp_core.records.explained import explanations_of, relevance_of
from closelook.lrp_core.records.types import Batch, Relevance, Requests, Results
from closelook.lrp_core.views.encoder_decoder import EncoderDecoderView
from closelook.lrp_core.views.view import ModelView

Reader = Callable[[Tensor, Tensor, Tensor], None]  # weights, gradient [B, H, T, T], visible entries [B, T, T]


def grad_attention_rollout(
    view: ModelView, batch: Batch, requests: Requests, *, discard_threshold: float, lowest: float, itself: str
) -> Results:
    """The readout position's row of the product of I + E_h[(A * dA)+] over layers (AttnLRP A.1.4).

    A is an attention map, dA its gradient, E_h the mean over heads. Rows are not normalised. The row is multiplied by
    one layer's map after the other, from the top layer down, as the gradient arrives; no product of maps is formed.
    Encoder-decoders use `CrossRollout`. `itself` says what the readout position has (see `of_itself`). For a span the
    gradient is that of the weighted sum, and the row the weighted mean over its positions.
    """
    batch = batch.to(view.device)
    if isinstance(view, EncoderDecoderView):
        return _over_both(view, batch, requests, discard_threshold, lowest, itself)
    rows: list[Tensor] = []  # two [B, T]: the row of the product so far, and that row minus the identity's
    reading = batch.reading(wide_dtype(view.dtype))

    def begin() -> None:
        rows[:] = [reading, torch.zeros_like(reading)]

    def read(weights: Tensor, gradient: Tensor, shown: Tensor) -> None:
        step = _step(weights, gradient, shown, discard_threshold, lowest)
        whole, attended = (row.to(step.device) for row in rows)
        brought = torch.einsum("bq,bqk->bk", whole, step)
        rows[:] = [whole + brought, attended + brought]

    def result() -> Tensor:
        whole, attended = rows
        return of_itself(whole, attended, reading, itself)

    return _explain(view, batch, requests, range(view.n_layers), begin, read, result)


def _step(weights: Tensor, gradient: Tensor, shown: Tensor, threshold: float, lowest: float) -> Tensor:
    """A layer's map E_h[(A * dA)+] [B, queries, keys], with outliers set to 0 as in :func:`discard`.

    `weights` A and `gradient` dA are [B, H, queries, keys], `shown` is the mask of entries that may be discarded.
    """
    step = (wide(weights) * wide(gradient)).clamp_min_(0).mean(1)
    if threshold < 1 or lowest > 0:
        step = discard(step, shown, threshold, lowest)
    return step


def gradcam(view: ModelView, batch: Batch, requests: Requests) -> Results:
    """The readout position's row of (E_h[A * mean(dA)])+ of the last layer (Chefer et al. 2021).

    The mean of a head's gradient dA is over its whole map, in causal models up to the readout position. For images it
    is over the class token's attention to patches, and the class token gets 0. The paper's min-max normalisation does
    not change ranks and is left out. In an encoder-decoder the layer is the last cross-attention, and decoder tokens
    get no relevance. For a span the row is the weighted mean over its positions.
    """
    batch = batch.to(view.device)
    weighted: list[Tensor] = []
    last = view.n_layers - 1
    keys = view.visible(batch)[:, : batch.input_ids.shape[1]].sum(-1)
    sizes = keys * view.asking(batch, last).sum(-1)  # [B], entries of a head's map that are not masked

    def read(weights: Tensor, gradient: Tensor, shown: Tensor) -> None:
        reading = batch.reading(wide_dtype(weights.dtype)).to(weights.device)
        row = torch.einsum("bq,bhqk->bhk", reading, wide(weights))
        if view.kind.images:
            of_head = torch.einsum("bq,bhqk->bhk", reading, wide(gradient))[..., 1:].mean(-1)  # [B, H]
            row = row.index_fill(-1, torch.zeros(1, dtype=torch.int64, device=row.device), 0)
        else:
            total = (wide(gradient) * shown[:, None]).sum((2, 3))
            of_head = total / sizes.to(weights.device)[:, None].clamp_min(1)
        weighted[:] = [(row * of_head[..., None]).mean(1).clamp_min(0)]

    return _explain(view, batch, requests, [last], weighted.clear, read, lambda: weighted[0])


def _explain(
    view: ModelView,
    batch: Batch,
    requests: Requests,
    layers: Sequence[int],
    begin: Callable[[], None],
    read: Reader,
    result: Callable[[], Tensor],
) -> Results:
    """Run one forward, and a backward for each explanation, in which attention maps and their gradients are read.

    In each backward `begin()` is called first, then `read(weights, gradient, shown)` for each of `layers` from the top
    down, then `result()` for the relevance [B, T].
    """
    maps: list[Tensor] = []

    def attend(kernel: Kernel, module: nn.Module, query: Tensor, *tensors: Any, layer: int, **options: Any) -> Attended:
        if not maps:  # the lowest layer that is read: no gradient is needed below it
            query = query.detach().requires_grad_()
        context, weights = kernel(module, query, *tensors, **options)
        assert weights is not None  # the eager kernel returns them
        shown = visible(tensors[2], view.asking(batch, layer), weights)
        weights.register_hook(lambda gradient: read(weights.detach(), gradient, shown))
        maps.append(weights)
        return context, weights

    around = {view.attentions[layer].attention: partial(attend, layer=layer) for layer in layers}
    explanations = explanations_of(requests)
    results: dict[str, Relevance] = {}
    with torch.enable_grad():
        with around_attention(view, around, stock="eager"):
            logits, numbers = explained_numbers(view, view.hidden(batch), batch, explanations)
        for i, (explanation, explained) in enumerate(numbers.items()):
            begin()
            torch.autograd.grad(explained.sum(), maps[0], retain_graph=i + 1 < len(explanations))
            tokens = result().to(batch.input_ids.device).masked_fill(batch.attention_mask == 0, 0)
            results[explanation] = relevance_of(tokens, logits, explained, conserves=False)
    return {request: results[request.explanation] for request in requests}


def _over_both(
    view: EncoderDecoderView, batch: Batch, requests: Requests, threshold: float, lowest: float, itself: str
) -> Results:
    """`grad_attention_rollout` for an encoder-decoder. All maps are kept, since they are multiplied from the bottom."""
    maps: dict[int, Tensor] = {}
    shown: dict[int, Tensor] = {}

    def read(layer: int, weights: Tensor, mask: Tensor | None) -> None:
        maps[layer], shown[layer] = weights, visible(mask, view.asking(batch, layer), weights)

    results: dict[str, Relevance] = {}
    with torch.enable_grad():
        token = view.embed(batch)[0].detach().requires_grad_()
        with weights_read(view, read):
            logits, numbers = explained_numbers(view, view.hidden(batch, token), batch, explanations_of(requests))
        for explanation, explained in numbers.items():
            gradients = torch.autograd.grad(explained.sum(), list(maps.values()), retain_graph=True)
            rollout = CrossRollout(view, batch)
            for (layer, weights), gradient in zip(maps.items(), gradients, strict=True):
                rollout.mix(layer, _step(weights.detach(), gradient, shown[layer], threshold, lowest))
            parts = rollout.parts(itself)
            results[explanation] = relevance_of(logits=logits, explained=explained, conserves=False, **parts)
    return {request: results[request.explanation] for request in requests}
