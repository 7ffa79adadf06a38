"""Contribution maps of attention blocks and their product over layers (Ferrando et al. 2022)."""

from __future__ import annotations

import torch
from torch import Tensor

from closelook.alti.kernel import contributions
from closelook.alti.layers import Layer
from closelook.alti.transformed import AttentionParts, Chunk, contributions_to


class Rollout:
    """The product of the layers' maps so far, [B, T, T]: how much of each input token is in each token now."""

    def __init__(self) -> None:
        self.total: Tensor | None = None  # None is the identity

    def multiply(self, layer_map: Tensor) -> None:
        """Multiply the map [B, Ti, Tj] of the next layer onto the product."""
        self.total = layer_map if self.total is None else layer_map @ self.total.to(layer_map.device)

    def divide(self, by: Tensor) -> None:
        """Divide the rows of the product by numbers `by` [B, T, 1]."""
        assert self.total is not None
        self.total = self.total / by.to(self.total.device)

    def to_inputs(self, rows: Tensor) -> Tensor:
        """Move numbers of the current tokens [B, E, T] to the input tokens [B, E, T]."""
        return rows if self.total is None else rows @ self.total.to(rows.device)


def pre_norm_map(layer: Layer, chunk: Chunk) -> Tensor:
    """The map [B, Ti, Tj] of a pre-norm block.

    Transformed vectors are made of the forward's own values, so the biases of the input norm and of the value
    projection belong to the tokens (the affine value path of Ferrando et al. 2023). The resultant is the sum of
    residual, transformed vectors and output bias.
    """
    residual = layer.residual.to(layer.dtype)
    parts = _parts(layer, output_weights(layer), residual, residual + layer.attended)
    return _rows_to_one(parts, chunk)


def post_norm_map(layer: Layer, chunk: Chunk) -> Tensor:
    """The map [B, Ti, Tj] of a post-norm block."""
    return _rows_to_one(_through_norm(layer), chunk)


def _rows_to_one(parts: AttentionParts, chunk: Chunk) -> Tensor:
    """The contributions [B, Ti, Tj] of a block, with rows normalised to a sum of 1."""
    gain = contributions(parts, chunk)
    return normalised(gain, torch.eye(gain.shape[-1], device=gain.device))


def post_norm_row(layer: Layer, position: Tensor) -> Tensor:
    """The row [B, 1, Tj] of `post_norm_map` for one destination of each sample, at `position` [B]."""
    gain = contributions_to(_through_norm(layer.at(position[:, None])), position)
    return normalised(gain, torch.nn.functional.one_hot(position, gain.shape[-1])).unsqueeze(1)


def normalised(gain: Tensor, identity: Tensor) -> Tensor:
    """The rows of `gain` [..., Tj] divided by their sum; rows of zeros become those of `identity`."""
    total = gain.sum(-1, keepdim=True)
    return torch.where(total > 0, gain / total, identity.to(gain.dtype))


def output_weights(layer: Layer) -> Tensor:
    """The weight of the output projection [H, K, D], in the dtype and on the device of the computation."""
    return layer.block.output_weights()[0].to(layer.residual.device, layer.dtype)


def _parts(layer: Layer, output: Tensor, residual: Tensor, resultant: Tensor) -> AttentionParts:
    """The block's AttentionParts with this output projection, residual and resultant."""
    weights, values = layer.weights(), layer.values()
    return AttentionParts(weights, values, output, residual, resultant, layer.allowed, layer.causal)


def _through_norm(layer: Layer) -> AttentionParts:
    """The parts of a post-norm block after its norm, times the standard deviation of each destination.

    The norm is linearised with the standard deviation of the sum that it normalises (Ferrando et al. 2022, eq. 9; they
    take the biased estimate without epsilon, we the norm's own, so that the resultant is exactly the norm's output).
    Dividing by it would scale a whole row of the map, which normalising the row undoes. So the division is left out,
    and the norm's bias is multiplied by the standard deviation instead.
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
    return _parts(layer, output, _centred(residual).mul_(weight), resultant)


def _centred(x: Tensor) -> Tensor:
    """x minus its mean over the last axis."""
    return x - x.mean(-1, keepdim=True)
