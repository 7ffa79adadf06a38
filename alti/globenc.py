"""GlobEnc (Modarressi et al.

2022): the norm of each source token's contribution to a block's output, both norms included.

Transformed vectors pass the attention's norm and the MLP's, linearised with the deviations of the states that these
norms see; the MLP itself is left out, and so are the norms' biases and that of the output projection. Deviations scale
all of a row and are gone once it sums to one; maps that are not `normalised` are left without them, too, for whoever
sees these states to divide by them.
"""

from __future__ import annotations

import torch
from torch import Tensor

from alti.layers import Layer
from alti.maps import normalised, output_weights
from alti.transformed import Chunk, slices

_SOURCES = 64  # tokens whose value-output vectors are held for a single row


def norm_map(layer: Layer, chunk: Chunk, normalise: bool = True) -> Tensor:
    """Map [B, Ti, Tj] of a block. Normalised, rows sum to one; rows without contributions are those of the identity."""
    weights, identity = layer.weights(chunk.workers), torch.eye(layer.residual.shape[1], device=layer.residual.device)
    identity = identity.expand(len(weights), -1, -1)
    norms = _norms(layer, weights, identity, layer.allowed, chunk.sources)
    return normalised(norms, identity) if normalise else norms


def norm_row(layer: Layer, position: Tensor, normalise: bool = True) -> Tensor:
    """Row [B, 1, Tj] of `norm_map` for one destination for each sample [B]."""
    row = layer.at(position)
    weights = row.weights()  # [B, H, Tj, 1]
    identity = torch.nn.functional.one_hot(position, weights.shape[2]).unsqueeze(1)
    norms = _norms(layer, weights, identity, row.allowed, _SOURCES)
    return normalised(norms, identity) if normalise else norms


def _norms(layer: Layer, weights: Tensor, identity: Tensor, allowed: Tensor, held: int) -> Tensor:
    """Norms [B, Ti, Tj] without deviations, 0 of what is hidden.

    `weights` [B, H, Tj, Ti]; `identity` [B, Ti, Tj] is 1 where destination and source are the same token.

    `allowed` [B | 1, Ti, Tj] is bool; value-output vectors of `held` tokens exist at a time, in float32's bytes.

    The square of the norm of sum_h w_h u_h is w G w with the inner products G of the u_h, which source j has once for
    all destinations: nothing as wide as a vector is made for a pair of tokens. They are taken in float64, where what
    heads take from each other leaves digits enough.
    """
    residual = _through_norms(layer, layer.residual.double())
    output = _through_norms(layer, output_weights(layer).double())  # [H, K, D]
    n, _, length, destinations = weights.shape
    square = residual.new_empty(n, destinations, length)
    for sources in slices(0, length, max(1, held // (2 * n))):
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
    """[..., D] behind both norms, but for their deviations and biases."""
    for norm in layer.block.sum_norms:
        weight, _ = norm.parameters()
        x = (x - x.mean(-1, keepdim=True)) * weight.to(x)
    return x
