"""How far each source token's transformed vector lies from what the attention block put out.

What an attention block puts out at token i is a sum of transformed vectors T_i(x_j), one for each source j, and biases.
Legend as in `lrp_core.types`; i counts destinations, j sources, both of length T.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from alti.threads import run_all


@dataclass(frozen=True)
class Chunk:
    """How much of a layer exists at a time, for each of the threads that work on it."""

    sources: int  # tokens whose value-output vectors [H, D] are held
    vectors: int  # transformed vectors [D] that are held
    workers: int = 1  # threads


@dataclass(frozen=True)
class AttentionParts:
    """One attention block taken apart, in the dtype of the computation.

    T_i(x_j) = sum_h weights[h, j, i] value[h, j] @ output[h], plus residual[i] if i = j.
    """

    weights: Tensor  # [B, H, Tj, Ti]: sources before destinations
    value: Tensor  # [B, H, T, K], biases included (may be an expanded view of G heads)
    output: Tensor  # [H, K, D]
    residual: Tensor  # [B, T, D]
    resultant: Tensor  # [B, T, D], what the block puts out: all transformed vectors and biases
    allowed: Tensor  # [B | 1, Ti, Tj] bool, what attention may see

    @property
    def causal(self) -> bool:
        return not bool(self.allowed.triu(1).any())


def contributions(parts: AttentionParts, chunk: Chunk) -> Tensor:
    """max(0, |y_i|_1 - |y_i - T_i(x_j)|_1) as [B, Ti, Tj] (Ferrando et al. 2022, eq. 12; 2023, eq. 14).

    Nothing of size T x T x D exists beyond what `chunk` holds. With |T - y| = 2 max(T, y) - T - y the difference needs
    one elementwise pass over each transformed vector, and sums of T that need none:
    |y| - |y - T| = 2 sum max(y, 0) - 2 sum max(T, y) + sum T.
    """
    gain = _gain(parts, chunk).transpose(1, 2).clamp_min_(0)
    visible = parts.allowed | torch.eye(gain.shape[-1], dtype=torch.bool, device=gain.device)
    return gain.masked_fill_(~visible, 0)  # a vector of zeros contributes nothing, whatever rounding says


def contributions_to(parts: AttentionParts, position: Tensor) -> Tensor:
    """One row of `contributions` for each sample, [B, Tj], for destinations `position` [B].

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


def _gain(parts: AttentionParts, chunk: Chunk) -> Tensor:
    """|y_i|_1 - |y_i - T_i(x_j)|_1, [B, Tj, Ti]; meaningless where a causal mask hides j."""
    n, heads, length, _ = parts.weights.shape
    causal, width = parts.causal, parts.output.shape[-1]
    found = parts.resultant.new_zeros(n, length, length)
    positive = parts.resultant.clamp_min(0).sum(-1).unsqueeze(1)  # [B, 1, Ti]
    value_sums = torch.einsum("bhjk,hk->bjh", parts.value, parts.output.sum(-1)).unsqueeze(-1)  # [B, Tj, H, 1]
    samples, held, step, rows = extents(n, length, chunk)
    groups = iter([(b, group) for b in slices(0, n, samples) for group in slices(0, length, held)])  # for all workers

    def work(vector_buffer: Tensor, product_buffer: Tensor) -> None:
        for b, group in groups:
            products = value_output(parts.value[b, :, group], parts.output, product_buffer)  # [b, j, H, D]
            weights = parts.weights[b, :, group].permute(0, 2, 3, 1)  # [b, j, i, H]
            gain, residual, resultant = found[b, group], parts.residual[b], parts.resultant[b].unsqueeze(1)
            for j, i in blocks(group, length, step, rows, causal):
                at = slice(j.start - group.start, j.stop - group.start)
                vectors = _product(weights[:, at, i], products[:, at], vector_buffer)  # [b, j, i, D]
                _add_residual(vectors, residual, j, i)
                torch.maximum(vectors, resultant[:, :, i], out=vectors)
                torch.sum(vectors, -1, out=gain[:, at, i])
            sums = torch.bmm(weights.flatten(0, 1), value_sums[b, group].flatten(0, 1)).view_as(gain)
            sums[:, :, group].diagonal(dim1=1, dim2=2).add_(residual[:, group].sum(-1))
            gain.sub_(positive[b]).mul_(-2).add_(sums)

    empty = parts.resultant.new_empty
    buffers = [(empty(samples * step * rows, width), empty(samples * held, heads, width)) for _ in range(chunk.workers)]
    run_all([partial(work, *pair) for pair in buffers])
    return found


def extents(n: int, length: int, chunk: Chunk) -> tuple[int, int, int, int]:
    """How a chunk is filled, destinations first: samples, their sources held, and one block's sources and destinations.

    samples * sources * destinations are at most `chunk.vectors`; the sources held are at least those of one block.
    """
    rows = min(length, chunk.vectors)
    step = min(length, chunk.vectors // rows)
    samples = min(n, chunk.vectors // (rows * step))
    return samples, min(length, max(step, chunk.sources // samples)), step, rows


def blocks(group: slice, length: int, step: int, rows: int, causal: bool) -> Iterator[tuple[slice, slice]]:
    """Sources and destinations of each block of a group of sources. Destinations change last, so that what the block
    puts out there stays in the cache; a causal mask leaves out those before the sources."""
    for i in slices(group.start if causal else 0, length, rows):
        for j in slices(group.start, min(group.stop, i.stop) if causal else group.stop, step):
            yield j, slice(max(i.start, j.start), i.stop) if causal else i


def _product(weights: Tensor, product: Tensor, buffer: Tensor) -> Tensor:
    """Transformed vectors [b, j, i, D] in `buffer`, of weights [b, j, i, H] and value-output vectors [b, j, H, D]."""
    shape = weights.shape[:3]
    vectors = buffer[: shape.numel()].view(*shape, -1)
    torch.bmm(weights.flatten(0, 1), product.flatten(0, 1), out=vectors.flatten(0, 1))
    return vectors


def _add_residual(vectors: Tensor, residual: Tensor, j: slice, i: slice) -> None:
    """Adds residual [b, T, D] to transformed vectors [b, j, i, D] where source and destination are the same."""
    low, high = max(i.start, j.start), min(i.stop, j.stop)
    if low < high:
        own = vectors[:, low - j.start : high - j.start, low - i.start : high - i.start]
        own.diagonal(dim1=1, dim2=2).add_(residual[:, low:high].transpose(1, 2))


def value_output(value: Tensor, output: Tensor, buffer: Tensor) -> Tensor:
    """value[h, j] @ output[h] for values [b, H, j, K] and weights [H, K, D], as [b, j, H, D] in `buffer`."""
    b, heads, j, _ = value.shape
    products = buffer[: b * j]
    torch.bmm(value.transpose(0, 1).flatten(1, 2), output, out=products.transpose(0, 1))
    return products.view(b, j, heads, -1)


def slices(start: int, stop: int, step: int) -> Iterator[slice]:
    for at in range(start, stop, step):
        yield slice(at, min(at + step, stop))
