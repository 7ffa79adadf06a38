"""Contribution maps of attention blocks and their product over layers (Ferrando et al. 2022)."""

from __future__ import annotations

import torch
from torch import Tensor

from alti.kernel import contributions
from alti.layers import Layer
from alti.transformed import AttentionParts, Chunk, contributions_to


class Rollout:
    """Product of the maps met so far, [B, T, T]: how much of each input token is in each token now."""

    def __init__(self) -> None:
        self.total: Tensor | None = None  # None is the identity

    def multiply(self, layer_map: Tensor) -> None:
        """Mixes once more, with the map [B, Ti, Tj] of the next layer."""
        self.total = layer_map if self.total is None else layer_map @ self.total.to(layer_map.device)

    def divide(self, by: Tensor) -> None:
        """Divides the rows of all maps so far by [B, T, 1]."""
        assert self.total is not None
        self.total = self.total / by.to(self.total.device)

    def to_inputs(self, rows: Tensor) -> Tensor:
        """Moves values on the current tokens [B, E, T] to the input tokens."""
        return rows if self.total is None else rows @ self.total.to(rows.device)


def pre_norm_map(layer: Layer, chunk: Chunk) -> Tensor:
    """Map [B, Ti, Tj] of a block that normalises its input.

    The values are those of the forward: the input's norm, linearised with its own standard deviation, changes nothing,
    and its bias and that of the value projection count to the tokens (the affine value path of Ferrando et al. 2023).
    The resultant is what the block adds up: residual, transformed vectors and output bias.
    """
    residual = layer.residual.to(layer.dtype)
    return _rows_to_one(_parts(layer, output_weights(layer), residual, residual + layer.attended, chunk), chunk)


def post_norm_map(layer: Layer, chunk: Chunk) -> Tensor:
    """Map [B, Ti, Tj] of a block whose norm follows the residual sum."""
    return _rows_to_one(_through_norm(layer, chunk), chunk)


def _rows_to_one(parts: AttentionParts, chunk: Chunk) -> Tensor:
    gain = contributions(parts, chunk)
    return normalised(gain, torch.eye(gain.shape[-1], device=gain.device))


def post_norm_row(layer: Layer, position: Tensor) -> Tensor:
    """Row [B, 1, Tj] of `post_norm_map` for one destination for each sample [B]."""
    gain = contributions_to(_through_norm(layer.at(position)), position)
    return normalised(gain, torch.nn.functional.one_hot(position, gain.shape[-1])).unsqueeze(1)


def normalised(gain: Tensor, identity: Tensor) -> Tensor:
    """Rows of `gain` [..., Tj] that sum to one; where all was clipped, those of `identity`."""
    total = gain.sum(-1, keepdim=True)
    return torch.where(total > 0, gain / total, identity.to(gain.dtype))


def output_weights(layer: Layer) -> Tensor:
    """Output projection [H, K, D] in the dtype of the computation."""
    return layer.block.output_weights()[0].to(layer.residual.device, layer.dtype)


def _parts(layer: Layer, output: Tensor, residual: Tensor, resultant: Tensor, chunk: Chunk | None) -> AttentionParts:
    weights = layer.weights(1 if chunk is None else chunk.workers)
    return AttentionParts(weights, layer.values(), output, residual, resultant, layer.allowed, layer.causal)


def _through_norm(layer: Layer, chunk: Chunk | None = None) -> AttentionParts:
    """The block behind its norm, every row multiplied by the row's standard deviation.

    The norm of the sum at i is linearised with the deviation of that very sum (Ferrando et al. 2022, eq. 9; they take
    the biased estimate without epsilon, we the norm's own, so that the resultant is exactly what the norm puts out,
    its bias included). Dividing by it scales all of row i, which the row's normalisation takes back: the rows are left
    multiplied, and the norm's bias is multiplied to match.
    """
    output = output_weights(layer)
    residual = layer.residual.to(layer.dtype)
    state = residual + layer.attended
    norm, _ = layer.block.sum_norms
    weight, shift = norm.parameters()
    weight = weight.to(output)
    deviation = (state.var(-1, unbiased=False, keepdim=True) + norm.eps).sqrt()  # [B, T, 1]
    resultant = _centred(state).mul_(weight)
    if shift is not None:
        resultant.addcmul_(shift.to(output), deviation)
    output = _centred(output).mul_(weight)
    return _parts(layer, output, _centred(residual).mul_(weight), resultant, chunk)


def _centred(x: Tensor) -> Tensor:
    return x - x.mean(-1, keepdim=True)
