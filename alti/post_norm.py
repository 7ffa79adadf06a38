"""Rollout of post-norm models: the readout position's row of the product of all layers' maps, and of each map.

Maps are those of ALTI (`alti.maps`) or of GlobEnc (Modarressi et al. 2022), which are made here: the norms of what each
source token contributes to a block's output. For GlobEnc transformed vectors pass both norms of the block, with
constant standard deviations. The MLP is left out, and so are the biases of norms and output projection. A standard
deviation scales a whole row of the map, so it cancels when rows are normalised to a sum of 1. Maps that are not
normalised leave it out, too: `mixing` divides by it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from closelook.alti.layers import Layer, visiting
from closelook.alti.maps import Rollout, normalised, output_weights, post_norm_map, post_norm_row
from closelook.alti.transformed import Chunk, slices
from closelook.lrp_core.device.precision import wide
from closelook.lrp_core.parts.layers import NormView
from closelook.lrp_core.records.types import Batch
from closelook.lrp_core.views.view import ModelView

_SOURCES = 64  # tokens whose value-output vectors are held at a time, for a single row of the map


def norm_map(layer: Layer, chunk: Chunk, normalise: bool = True) -> Tensor:
    """The map [B, Ti, Tj] of a block. With `normalise` rows sum to 1; rows of zeros become those of the identity."""
    weights, identity = layer.weights(), torch.eye(layer.residual.shape[1], device=layer.residual.device)
    identity = identity.expand(len(weights), -1, -1)
    norms = _norms(layer, weights, identity, layer.allowed, chunk.sources)
    return normalised(norms, identity) if normalise else norms


def norm_row(layer: Layer, position: Tensor, normalise: bool = True) -> Tensor:
    """The row [B, 1, Tj] of `norm_map` for one destination of each sample, at `position` [B]."""
    row = layer.at(position[:, None])
    weights = row.weights()  # [B, H, Tj, 1]
    identity = torch.nn.functional.one_hot(position, weights.shape[2]).unsqueeze(1)
    norms = _norms(layer, weights, identity, row.allowed, _SOURCES)
    return normalised(norms, identity) if normalise else norms


def _norms(layer: Layer, weights: Tensor, identity: Tensor, allowed: Tensor, held: int) -> Tensor:
    """Norms [B, Ti, Tj] of transformed vectors after both norms, without standard deviations; 0 where not `allowed`.

    `weights` are [B, H, Tj, Ti]; `identity` [B, Ti, Tj] is 1 where destination and source are the same token; `allowed`
    [B | 1, Ti, Tj] is the mask of attention. Value-output vectors u_h of `held` tokens (counted in float32) exist at a
    time.

    The squared norm of sum_h w_h u_h is w G w, where G are the inner products of the u_h. A source has one G for all
    destinations, so no vector is computed for a pair of tokens. It is computed in float64, since terms of different
    heads cancel.
    """
    residual = _through_norms(layer, layer.residual.double())
    output = _through_norms(layer, output_weights(layer).double())  # [H, K, D]
    n, _, length, destinations = weights.shape
    square = residual.new_empty(n, destinations, length)
    for sources in slices(length, max(1, held // (2 * n))):
        vectors = torch.einsum("bhjk,hkd->bjhd", layer.values()[:, :, sources].double(), output)
        inner = vectors @ vectors.transpose(-1, -2)  # [B, j, H, H]
        w = weights[:, :, sources].permute(0, 2, 3, 1).double()  # [B, j, Ti, H]
        x = residual[:, sources]
        with_own = (w @ (vectors @ x.unsqueeze(-1)))[..., 0] * 2 + x.square().sum(-1, keepdim=True)  # [B, j, Ti]
        of_pairs = (w @ inner * w).sum(-1).transpose(1, 2)
        square[:, :, sources] = of_pairs + identity[:, :, sources] * with_own.transpose(1, 2)
    hidden = ~(allowed | identity.bool())
    return square.clamp_min(0).sqrt().masked_fill(hidden, 0).to(layer.dtype)


def _through_norms(layer: Layer, x: Tensor) -> Tensor:
    """Vectors [..., D] after both norms of a block, without their standard deviations and biases."""
    for norm in layer.block.sum_norms:
        weight, _ = norm.parameters()
        x = (x - x.mean(-1, keepdim=True)) * weight.to(x)
    return x


@dataclass(frozen=True)
class Maps:
    """Functions that compute the map of a layer."""

    whole: Callable[[Layer, Chunk], Tensor]  # the whole map [B, Ti, Tj]
    row: Callable[[Layer, Tensor], Tensor]  # its row [B, 1, Tj] for the destination at position [B] of each sample
    lacks_deviations: bool = False  # rows must still be divided by the standard deviations of the block's norms


ALTI = Maps(post_norm_map, post_norm_row)  # Ferrando et al. 2022
GLOBENC = Maps(norm_map, norm_row)  # Modarressi et al. 2022
RAW_GLOBENC = Maps(partial(norm_map, normalise=False), partial(norm_row, normalise=False), lacks_deviations=True)


def mixing(view: ModelView, batch: Batch, chunk: Chunk, maps: Maps) -> tuple[Tensor, Tensor, Tensor]:
    """Logits [B, 2] of target and foil ([B, 1] without foils), contributions [B, T], and those by layer [B, L, T].

    Contributions are the readout position's row of the product of all maps, those by layer its rows of each map. They
    sum to 1 if the rows of maps do.
    """
    rollout, last = Rollout(), view.n_layers - 1
    rows: list[Tensor] = []

    def at_position(of_tokens: Tensor) -> Tensor:
        device = of_tokens.device
        return of_tokens[torch.arange(len(batch), device=device), batch.position.to(device)]

    def visit(layer: Layer) -> None:
        position = batch.position.to(layer.residual.device)
        if layer.index == last:
            rows.append(maps.row(layer, position)[:, 0])
            return
        layer_map = maps.whole(layer, chunk)
        rows.append(at_position(layer_map))
        rollout.multiply(layer_map)

    def divide(_: nn.Module, args: tuple[Any, ...], *, index: int, norm: NormView) -> None:
        state = wide(args[0])
        deviation = (state.var(-1, unbiased=False, keepdim=True) + norm.eps).sqrt()  # [B, T, 1]
        rows[index] = rows[index] / at_position(deviation).to(rows[index].device)
        if index < last:
            rollout.divide(deviation)

    with ExitStack() as undo:
        undo.enter_context(visiting(view, visit))
        for index, block in enumerate(view.blocks if maps.lacks_deviations else ()):
            for norm in block.sum_norms:
                hook = partial(divide, index=index, norm=norm)
                undo.enter_context(norm.module.register_forward_pre_hook(hook))
        logits = view.logits(batch)
    tokens = rollout.to_inputs(rows[-1].unsqueeze(1))[:, 0]
    return logits, tokens, torch.stack([row.to(tokens) for row in rows], 1)
