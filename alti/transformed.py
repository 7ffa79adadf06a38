"""Contributions of source tokens to the output of an attention block, without holding all transformed vectors.

The output y_i of an attention block at token i is the sum of transformed vectors T_i(x_j), one for each source j, and
biases. Shapes are as in `lrp_core.records.types`; Ti counts destinations i, Tj sources j, both of length T.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Chunk:
    """The amount of a layer that is held at a time."""

    sources: int  # tokens whose value-output vectors [H, D] are held
    vectors: int  # transformed vectors that are held

    @property
    def is_smallest(self) -> bool:
        """True if it cannot be halved."""
        return self.sources == self.vectors == 1

    @property
    def half(self) -> Chunk:
        """A chunk of half the size."""
        return Chunk(max(1, self.sources // 2), max(1, self.vectors // 2))


@dataclass(frozen=True)
class AttentionParts:
    """The tensors of an attention block that make its transformed vectors, in the dtype of the computation.

    T_i(x_j) = sum_h weights[h, j, i] value[h, j] @ output[h], plus residual[i] if i = j.
    """

    weights: Tensor  # [B, H, Tj, Ti]: sources before destinations
    value: Tensor  # [B, H, T, K], biases included
    output: Tensor  # [H, K, D]
    residual: Tensor  # [B, T, D]
    resultant: Tensor  # [B, T, D], the block's output y: the sum of all transformed vectors and biases
    allowed: Tensor  # [B | 1, Ti, Tj], True where a destination may attend to a source
    causal: bool = False  # no destination may attend to later tokens


def contributions(parts: AttentionParts, chunk: Chunk) -> Tensor:
    """Contributions max(0, |y_i|_1 - |y_i - T_i(x_j)|_1), [B, Ti, Tj] (Ferrando et al. 2022, eq. 12; 2023, eq. 14).

    Since |T - y| = 2 max(T, y) - T - y, the difference is 2 sum max(y, 0) - 2 sum max(T, y) + sum T: only max(T, y)
    needs the entries of each transformed vector.
    """
    value_sums = torch.einsum("bhjk,hk->bhj", parts.value, parts.output.sum(-1))
    sums = torch.einsum("bhji,bhj->bji", parts.weights, value_sums)  # of the entries of vectors
    sums.diagonal(dim1=1, dim2=2).add_(parts.residual.sum(-1))
    positive = parts.resultant.clamp_min(0).sum(-1).unsqueeze(1)  # [B, 1, Ti]
    gain = _maxima(parts, chunk).sub_(positive).mul_(-2).add_(sums)
    hidden = ~(parts.allowed | torch.eye(gain.shape[-1], dtype=torch.bool, device=gain.device))
    # masked sources have vectors of zeros, whose contributions are 0 up to rounding
    return gain.clamp_min_(0).masked_fill_(hidden.transpose(1, 2), 0).transpose(1, 2)


def contributions_to(parts: AttentionParts, position: Tensor) -> Tensor:
    """One row of `contributions` for each sample, [B, Tj], for the destination at `position` [B].

    The destination axis of `parts` has length one: weights [B, H, Tj, 1], residual and resultant [B, 1, D], allowed
    [B, 1, Tj].
    """
    at = torch.arange(len(position), device=position.device)
    weighted = (parts.weights * parts.value).transpose(1, 2).flatten(2)  # [B, Tj, H * K]
    vectors = weighted @ parts.output.flatten(0, 1)  # [B, Tj, D]
    vectors[at, position] += parts.residual[:, 0]
    gain = (parts.resultant.abs() - vectors.sub_(parts.resultant).abs_()).sum(-1).clamp_min_(0)
    visible = parts.allowed[:, 0].clone()
    visible[at, position] = True
    return gain.masked_fill_(~visible, 0)


def _maxima(parts: AttentionParts, chunk: Chunk) -> Tensor:
    """The sums over d of max(T_i(x_j), y_i), [B, Tj, Ti]; 0 where a causal model hides the whole tile of j and i."""
    n, _, length, _ = parts.weights.shape
    maxima = parts.resultant.new_zeros(n, length, length)
    samples, held, step, rows = extents(n, length, chunk)
    buffer = parts.resultant.new_empty(samples * step * rows * parts.output.shape[-1])
    for some in slices(n, samples):
        for group in slices(length, held):
            products = value_output(parts.value[some, :, group], parts.output)  # [b, j, H, D]
            for sources in slices(group.stop, step, group.start):
                of_sources = products[:, sources.start - group.start : sources.stop - group.start]
                for destinations in slices(length, rows, sources.start if parts.causal else 0):
                    vectors = _vectors(parts, of_sources, some, sources, destinations, buffer)
                    torch.maximum(vectors, parts.resultant[some, None, destinations], out=vectors)
                    maxima[some, sources, destinations] = vectors.sum(-1)
    return maxima


def _vectors(
    parts: AttentionParts, products: Tensor, samples: slice, sources: slice, destinations: slice, buffer: Tensor
) -> Tensor:
    """The transformed vectors [b, j, i, D] of a tile, in `buffer`, from the value-output vectors of its sources."""
    weights = parts.weights[samples, :, sources, destinations].permute(0, 2, 3, 1)  # [b, j, i, H]
    shape = (*weights.shape[:3], products.shape[-1])
    vectors = buffer[: weights[..., 0].numel() * shape[-1]].view(shape)
    torch.bmm(weights.flatten(0, 1), products.flatten(0, 1), out=vectors.flatten(0, 1))
    first, last = max(sources.start, destinations.start), min(sources.stop, destinations.stop)
    if first < last:  # tokens that are source and destination
        j, i = (slice(first - part.start, last - part.start) for part in (sources, destinations))
        vectors[:, j, i].diagonal(dim1=1, dim2=2).add_(parts.residual[samples, first:last].mT)
    return vectors


def extents(n: int, length: int, chunk: Chunk) -> tuple[int, int, int, int]:
    """The sizes by which a layer is cut: (samples, sources that are held, sources of a tile, destinations of a tile).

    Samples times the tile's sources and destinations are at most `chunk.vectors`. Tiles get as many destinations as
    possible. At least the sources of one tile are held.
    """
    rows = min(length, chunk.vectors)
    step = min(length, chunk.vectors // rows)
    samples = min(n, chunk.vectors // (rows * step))
    return samples, min(length, max(step, chunk.sources // samples)), step, rows


def value_output(value: Tensor, output: Tensor) -> Tensor:
    """The value-output vectors value[h, j] @ output[h], [b, j, H, D], of values [b, H, j, K] and weights [H, K, D].

    Heads are outermost in memory, so that the matrix product needs no copy.
    """
    b, heads, j, _ = value.shape
    products = torch.bmm(value.transpose(0, 1).flatten(1, 2), output)
    return products.view(heads, b, j, -1).permute(1, 2, 0, 3)


def slices(stop: int, step: int, start: int = 0) -> Iterator[slice]:
    """Yield consecutive slices of `step` numbers, the last one shorter, that cover `start` to `stop`."""
    for at in range(start, stop, step):
        yield slice(at, min(at + step, stop))
