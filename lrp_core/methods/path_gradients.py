"""Gradients at many points near an input: integrated gradients and SmoothGrad.

Points are rows of forwards whose size a token budget bounds. The gradient is the model's own, without rules.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lrp_core.attention import around_attention
from lrp_core.capabilities import UNCENTRED
from lrp_core.explained import relevance_of
from lrp_core.methods.gradients import reduced
from lrp_core.methods.random_baseline import seed_of
from lrp_core.readout import explained_numbers
from lrp_core.types import Batch, Relevance, Request, UserError
from lrp_core.variants import TOKEN_BUDGET, pieces, tiled
from lrp_core.view import ModelView


def integrated_gradients(
    view: ModelView,
    batch: Batch,
    requests: Sequence[Request],
    *,
    steps: int,
    rule: str,
    baseline: str,
    token_budget: int = TOKEN_BUDGET,
) -> dict[Request, Relevance]:
    """(x - x') times the mean gradient between x' and x, embeddings of tokens [B, T, D] (AttnLRP equation 21).

    The path moves token embeddings; positions and segments stay. The sum over tokens is the explained number minus its
    value at the baseline x', up to the error of the rule. Raises UserError for a pad baseline without a pad token.
    """
    batch = batch.to(view.device)
    explanations = tuple(dict.fromkeys(request.explanation for request in requests))
    with torch.no_grad(), around_attention(view, {}):
        token = view.token_embedding(batch.input_ids)
        start = _baseline(view, token, baseline)
        ends = tiled(batch, 2)
        logits, at_ends = explained_numbers(view, view.hidden(ends, torch.cat([token, start])), ends, explanations)
    wide = torch.promote_types(token.dtype, torch.float32)
    way = token.to(wide) - start.to(wide)
    alphas, weights = _nodes(steps, rule)
    points = lambda k: (start.to(wide) + alphas[k] * way).to(token.dtype)  # noqa: E731
    means = _weighted_gradients(view, batch, points, weights, explanations, token_budget)
    results = {}
    for request in requests:
        how = request.option("reduce", "sum")
        results[request] = relevance_of(
            reduced(way * means[request.explanation], how).masked_fill(batch.attention_mask == 0, 0),
            logits[: len(batch)],
            at_ends[request.explanation][: len(batch)],
            conserves=how == "sum",
            baseline=at_ends[request.explanation][len(batch) :],
        )
    return results


def smoothgrad(
    view: ModelView,
    batch: Batch,
    requests: Sequence[Request],
    *,
    samples: int,
    sigma: float,
    scale: str,
    seed: int = 0,
    token_budget: int = TOKEN_BUDGET,
) -> dict[Request, Relevance]:
    """The mean gradient at `samples` points drawn around the token embeddings (AttnLRP equation 22).

    It is not multiplied by the input. Norms that subtract the mean make the gradient's sum over dimensions 0: their
    models take its l2 norm by default. Noise is drawn from `seed` and the sample's own tokens, so that batching and
    padding change nothing.
    """
    batch = batch.to(view.device)
    explanations = tuple(dict.fromkeys(request.explanation for request in requests))
    with torch.no_grad(), around_attention(view, {}):
        token = view.token_embedding(batch.input_ids)
        logits, whole = explained_numbers(view, view.hidden(batch, token), batch, explanations)
    wide = torch.promote_types(token.dtype, torch.float32)
    deviation = sigma * (_spread(token.to(wide), batch) if scale == "relative" else 1)
    noise = Noise(batch, token.shape[-1], seed)
    points = lambda k: (token.to(wide) + deviation * noise(k).to(token.device, wide)).to(token.dtype)  # noqa: E731
    means = _weighted_gradients(view, batch, points, [1 / samples] * samples, explanations, token_budget)
    by_default = "sum" if UNCENTRED in view.family.capabilities else "l2"
    how = {request: request.option("reduce", "auto").replace("auto", by_default) for request in requests}
    return {
        request: relevance_of(
            reduced(means[request.explanation], how[request]).masked_fill(batch.attention_mask == 0, 0),
            logits,
            whole[request.explanation],
            conserves=False,
        )
        for request in requests
    }


class Noise:
    """Standard normal numbers for the real tokens of a batch, 0 on padding."""

    def __init__(self, batch: Batch, width: int, seed: int) -> None:
        self._mask = batch.attention_mask.bool().cpu()  # [B, T]
        ids = batch.input_ids.cpu()
        self._seeds = [seed_of(ids[i][mask], seed) for i, mask in enumerate(self._mask)]
        self._width = width

    def __call__(self, k: int) -> Tensor:
        """The `k`-th draw, [B, T, D]."""
        noise = torch.zeros(*self._mask.shape, self._width)
        for i, mask in enumerate(self._mask):
            drawn = np.random.default_rng([self._seeds[i], k]).standard_normal(
                (int(mask.sum()), self._width), np.float32
            )
            noise[i, mask] = torch.from_numpy(drawn)
        return noise


def _weighted_gradients(
    view: ModelView,
    batch: Batch,
    points: Callable[[int], Tensor],
    weights: Sequence[float],
    explanations: Sequence[str],
    token_budget: int,
) -> dict[str, Tensor]:
    """Sum over k of `weights[k]` times the gradient at `points(k)`, token embeddings [B, T, D], by explanation."""
    sums: dict[str, Any] = dict.fromkeys(explanations, 0)
    for part in pieces(range(len(weights)), batch.input_ids.numel(), token_budget):
        rows = tiled(batch, len(part))
        with torch.inference_mode(False), torch.enable_grad(), around_attention(view, {}):
            leaf = torch.cat([points(k) for k in part]).detach().requires_grad_()  # [K * B, T, D]
            _, numbers = explained_numbers(view, view.hidden(rows, leaf), rows, explanations)
            for i, (explanation, number) in enumerate(numbers.items()):
                (gradient,) = torch.autograd.grad(number.sum(), leaf, retain_graph=i + 1 < len(numbers))
                gradient = gradient.to(torch.promote_types(gradient.dtype, torch.float32))
                factors = torch.tensor([weights[k] for k in part]).to(gradient)
                sums[explanation] += torch.einsum("k,kbtd->btd", factors, gradient.unflatten(0, (len(part), -1)))
    return sums


def _baseline(view: ModelView, token: Tensor, baseline: str) -> Tensor:
    if baseline == "zero":
        return torch.zeros_like(token)
    pad = view.config.pad_token_id
    if pad is None:
        raise UserError("integrated_gradients: the model names no pad token: use baseline 'zero'")
    return view.token_embedding(torch.full(token.shape[:2], pad, device=token.device))


def _nodes(steps: int, rule: str) -> tuple[list[float], list[float]]:
    """Where on the path from 0 to 1 gradients are taken, and their weights."""
    if rule == "right":
        return [k / steps for k in range(1, steps + 1)], [1 / steps] * steps
    nodes, weights = np.polynomial.legendre.leggauss(steps)
    return ((1 + nodes) / 2).tolist(), (weights / 2).tolist()


def _spread(token: Tensor, batch: Batch) -> Tensor:
    """Greatest minus least entry of each sample's embeddings, [B, 1, 1] (Smilkov et al. 2017)."""
    padding = (batch.attention_mask == 0)[..., None]
    most = token.masked_fill(padding, -torch.inf).amax((1, 2), keepdim=True)
    least = token.masked_fill(padding, torch.inf).amin((1, 2), keepdim=True)
    return (most - least).clamp_min(0)  # a row of padding has none
