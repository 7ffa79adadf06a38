"""Gradients at many points near an input: integrated gradients and SmoothGrad.

The points of a sample are rows of forward passes, whose size a token budget bounds. The source is the input that is
moved: token embeddings, or the pixels of an image. Gradients are the model's own, by the empty table of rules.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from closelook.lrp_core.device.precision import wide, wide_dtype
from closelook.lrp_core.device.transfer import to_device
from closelook.lrp_core.methods.baselines import seeds_of
from closelook.lrp_core.methods.gradients import REDUCTIONS
from closelook.lrp_core.operations.explain import ID_INPUTS, PIXELS, Forward
from closelook.lrp_core.operations.forward import forward_pass
from closelook.lrp_core.records.capabilities import UNCENTRED
from closelook.lrp_core.records.explained import explanations_of, relevance_of
from closelook.lrp_core.records.types import Batch, Requests, Results, UserError
from closelook.lrp_core.records.variants import TOKEN_BUDGET, pieces, tiled
from closelook.lrp_core.rules import PLAIN
from closelook.lrp_core.views.images import over_patches
from closelook.lrp_core.views.view import ModelView


def integrated_gradients(
    view: ModelView,
    batch: Batch,
    requests: Requests,
    *,
    steps: int,
    rule: str,
    baseline: str,
    token_budget: int = TOKEN_BUDGET,
) -> Results:
    """Integrated gradients: (x - x') times the mean gradient on the line from x' to x (AttnLRP equation 21).

    x is the token embeddings (positions and segments stay) or the pixels of an image, where a patch gets the sum of
    its pixels. Relevance sums to the explained number minus its value at the baseline x', up to the error of the
    quadrature `rule` with `steps` points. Raises UserError for baseline "pad" if the model has no pad token.
    """
    batch = batch.to(view.device)
    explanations = explanations_of(requests)
    at_input = _forward(view, batch, explanations)
    source = _source(at_input)
    start = _baseline(view, batch, source, baseline)
    at_start = _forward(view, batch, explanations, start)
    way = wide(source) - wide(start)
    alphas, weights = _nodes(steps, rule)

    def points(part: range) -> Tensor:
        return torch.cat([(wide(start) + alphas[k] * way).to(source.dtype) for k in part])

    means = _weighted_gradients(view, batch, points, weights, explanations, token_budget)
    results: Results = {}
    for request in requests:
        how = request.option("reduce", "sum")
        parts = _of_tokens(view, batch, way * means[request.explanation], how)
        whole, empty = (of.output[request.explanation].detach() for of in (at_input, at_start))
        parts |= {"conserves": how == "sum", "baseline": empty}
        results[request] = relevance_of(logits=at_input.output["logits"], explained=whole, **parts)
    return results


def smoothgrad(
    view: ModelView,
    batch: Batch,
    requests: Requests,
    *,
    samples: int,
    sigma: float,
    scale: str,
    seed: int = 0,
    token_budget: int = TOKEN_BUDGET,
) -> Results:
    """SmoothGrad: the mean gradient at `samples` noisy copies of the embeddings or pixels (AttnLRP equation 22).

    It is not multiplied by the input. In models whose norms subtract the mean, the gradient sums to 0 over dimensions,
    so its l2 norm is the default there. Noise has standard deviation `sigma`, with `scale` "relative" times the range
    of the sample's embeddings. Noise and range depend on `seed` and on the tokens that the prediction can see only:
    batching, padding and later tokens change nothing.
    """
    on_host, batch = batch.to("cpu"), batch.to(view.device)
    explanations = explanations_of(requests)
    at_input = _forward(view, batch, explanations)
    source = _source(at_input)
    deviation = sigma * (_spread(wide(source), batch, view.visible(batch)) if scale == "relative" else 1)
    noise = Noise(on_host, view.visible(on_host), source.shape[-1], seed)

    def points(part: range) -> Tensor:
        drawn = to_device(torch.stack([noise(k) for k in part]), source.device)  # [K, B, ...]
        moved = wide(source) + deviation * drawn.to(wide_dtype(source.dtype))
        return moved.to(source.dtype).flatten(0, 1)

    means = _weighted_gradients(view, batch, points, [1 / samples] * samples, explanations, token_budget)
    by_default = "sum" if UNCENTRED in view.family.capabilities else "l2"
    logits, whole = at_input.output["logits"], at_input.output
    results: Results = {}
    for request in requests:
        how = request.option("reduce", "auto").replace("auto", by_default)
        parts = _of_tokens(view, batch, means[request.explanation], how)
        results[request] = relevance_of(logits=logits, explained=whole[request.explanation], conserves=False, **parts)
    return results


def _forward(view: ModelView, batch: Batch, explanations: Sequence[str], source: Tensor | None = None) -> Forward:
    """A forward pass without rules, at another `source` than that of the batch, if given."""
    if source is not None and batch.pixel_values is not None:
        batch, source = replace(batch, pixel_values=source), None
    instead = {}
    if source is not None:
        of_streams = source.tensor_split([batch.input_ids.shape[1]], 1)
        instead = dict(zip(ID_INPUTS, of_streams, strict=True))
    forward = forward_pass(view, batch, batch, explanations, [PLAIN], instead=instead)
    forward.roots.require_one_table()
    return forward


def _source(forward: Forward) -> Tensor:
    """The input of a forward pass: pixels [B, C, H, W], or embeddings of tokens laid out like `Batch.every_id`."""
    if forward.roots.pixels is not None:
        return forward.roots.pixels.detach()
    return _joined({root.stream: root.value.detach() for root in forward.roots.found if root.words})


def _joined(by_stream: dict[str, Tensor]) -> Tensor:
    """Values of tokens [B, T, ...], those of the encoder and then those of the decoder, from those of each stream."""
    streams = [by_stream[name] for name in ID_INPUTS if name in by_stream]
    return torch.cat([of_stream.to(streams[0].device) for of_stream in streams], 1)


class Noise:
    """Standard normal noise for the tokens of a batch [B, T, D], or for its pixels [B, C, H, W]."""

    def __init__(self, batch: Batch, drawn: Tensor, width: int, seed: int) -> None:
        """`drawn` [B, T] is True for tokens that get noise; others get 0. `width` is D. All tensors are on the CPU."""
        self._seeds = seeds_of(batch, seed, drawn)
        if batch.pixel_values is None:
            self._shape: tuple[int, ...] = (batch.every_id.shape[1], width)
            self._drawn: list[Any] = list(drawn)
        else:
            self._shape = tuple(batch.pixel_values.shape[1:])
            self._drawn = [slice(None)] * len(batch)

    def __call__(self, k: int) -> Tensor:
        """The `k`-th draw, [B, ...]."""
        noise = torch.zeros(len(self._seeds), *self._shape, dtype=torch.float32)
        for of_row, drawn, seed in zip(noise, self._drawn, self._seeds, strict=True):
            numbers = np.random.default_rng([seed, k]).standard_normal(of_row[drawn].shape, np.float32)
            of_row[drawn] = torch.from_numpy(numbers)
        return noise


def _of_tokens(view: ModelView, batch: Batch, relevance: Tensor, how: str) -> dict[str, Tensor]:
    """Fields of a Relevance from the relevance of every number of the source, [B, T, D] or [B, C, H, W]."""
    if batch.pixel_values is None:
        return batch.parted(REDUCTIONS[how](relevance).masked_fill(batch.every_mask == 0, 0))
    pixels = REDUCTIONS[how](relevance.movedim(1, -1))
    return {"tokens": over_patches(view, pixels), "pixels": pixels}


def _weighted_gradients(
    view: ModelView,
    batch: Batch,
    points: Callable[[range], Tensor],
    weights: Sequence[float],
    explanations: Sequence[str],
    token_budget: int,
) -> dict[str, Tensor]:
    """The sum over k of `weights[k]` times the gradient at the k-th point, [B, ...], by explanation."""
    sums: dict[str, Any] = dict.fromkeys(explanations, 0)
    factors = to_device(torch.tensor(weights, dtype=torch.float64), view.device)
    for part in pieces(range(len(weights)), batch.every_id.numel(), token_budget):
        forward = _forward(view, tiled(batch, len(part)), explanations, points(part))
        for i, explanation in enumerate(explanations):
            number = forward.output[explanation]
            pairs = forward.gradients(number, PLAIN, keep=i + 1 < len(explanations))
            of_source = {root.stream: gradient for root, gradient in pairs if root.words}
            gradient = of_source[PIXELS] if PIXELS in of_source else _joined(of_source)
            gradient = wide(gradient).unflatten(0, (len(part), -1))
            of_part = factors[part.start : part.stop].to(gradient)
            sums[explanation] += torch.tensordot(of_part, gradient, dims=1)
    return sums


def _baseline(view: ModelView, batch: Batch, source: Tensor, baseline: str) -> Tensor:
    """The source at which the path starts, like `source`: zeros, or pad tokens in place of all tokens."""
    if baseline == "zero":
        return torch.zeros_like(source)
    if view.kind.images or view.config.pad_token_id is None:
        raise UserError("integrated_gradients: the model names no pad token: use baseline 'zero'")
    pad = view.config.pad_token_id
    empty = replace(batch, input_ids=torch.full_like(batch.input_ids, pad))
    if batch.decoder_input_ids is not None:
        empty = replace(empty, decoder_input_ids=torch.full_like(batch.decoder_input_ids, pad))
    return _source(_forward(view, empty, ["target"]))


def _nodes(steps: int, rule: str) -> tuple[list[float], list[float]]:
    """The points on the path from 0 to 1 at which gradients are taken, and their weights."""
    if rule == "right":
        return [k / steps for k in range(1, steps + 1)], [1 / steps] * steps
    nodes, weights = np.polynomial.legendre.leggauss(steps)
    return ((1 + nodes) / 2).tolist(), (weights / 2).tolist()


def _spread(source: Tensor, batch: Batch, visible: Tensor) -> Tensor:
    """The range (greatest minus least entry) of each sample's source, [B, 1, ...] (Smilkov et al. 2017).

    Only `visible` tokens [B, T] count.
    """
    axes = tuple(range(1, source.dim()))
    most = least = source
    if batch.pixel_values is None:
        hidden = ~visible[..., None].to(source.device)
        most, least = source.masked_fill(hidden, -torch.inf), source.masked_fill(hidden, torch.inf)
    most, least = most.amax(axes, keepdim=True), least.amin(axes, keepdim=True)
    return (most - least).clamp_min(0)  # -inf - inf for a row of padding
