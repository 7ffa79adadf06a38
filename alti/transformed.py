"""Contributions of source tokens to the output of an attention block, without holding all transformed vectors.

The output y_i of an attention block at token i is the sum of transformed vectors T_i(x_j), one for each source j, and
biases. Shapes are as in `lrp_core.records.types`; Ti counts destinations i, Tj sources j, both of length T.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from closelook.alti.threads import run_all, without_python


@dataclass(frozen=True)
class Chunk:
    """The amount of a layer that each thread holds at a time."""

    sources: int  # tokens whose value-output vectors [H, D] are held
    vectors: int  # transformed vectors that are held
    workers: int = 1  # threads
    width: int | None = None  # entries of each vector that are held; None: all D

    @property
    def is_smallest(self) -> bool:
        """True if it cannot be halved (`planner.smaller`)."""
        return self.sources == self.vectors == self.workers == 1

    def strip(self, d_model: int) -> int:
        """The number of entries that are held of a vector with `d_model` entries."""
        return min(d_model, self.width or d_model)


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

    Transformed vectors exist only as far as `chunk` says. Since |T - y| = 2 max(T, y) - T - y, the difference is
    |y| - |y - T| = 2 sum max(y, 0) - 2 sum max(T, y) + sum T: only max(T, y) needs the entries of each transformed
    vector.
    """
    gain = _gain(parts, chunk)  # [B, Tj, Ti]
    hidden = ~(parts.allowed | torch.eye(gain.shape[-1], dtype=torch.bool, device=gain.device))
    # masked sources have vectors of zeros, whose contributions are 0 up to rounding
    return gain.clamp_min_(0).masked_fill_(hidden.transpose(1, 2).contiguous(), 0).transpose(1, 2)


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


def _gain(parts: AttentionParts, chunk: Chunk) -> Tensor:
    """|y_i|_1 - |y_i - T_i(x_j)|_1 as [B, Tj, Ti]; meaningless where a causal mask hides j from i."""
    n, heads, length, _ = parts.weights.shape
    causal, width = parts.causal, parts.output.shape[-1]
    contributions = parts.resultant.new_zeros(n, length, length)
    resultants = [strip.contiguous() for strip in parts.resultant.split(chunk.strip(width), -1)]
    positive = parts.resultant.clamp_min(0).sum(-1).unsqueeze(1)  # [B, 1, Ti]
    value_sums = parts.value @ parts.output.sum(-1).unsqueeze(-1)  # [B, H, Tj, 1]
    samples, held, step, rows = extents(n, length, chunk)
    groups = iter([(b, group) for b in slices(n, samples) for group in slices(length, held)])  # shared

    def work(vector_buffer: Tensor, product_buffer: Tensor) -> None:
        for b, group in groups:  # each worker takes the next group, so none is computed twice
            products = value_output(parts.value[b, :, group], parts.output, product_buffer)  # [b, j, H, D]
            weights = parts.weights[b, :, group].permute(0, 2, 3, 1)  # [b, j, i, H]
            gain, residual = contributions[b, group], parts.residual[b]
            strips = [strip[b] for strip in resultants]
            add_maxima(gain, weights, products, residual, strips, vector_buffer, group.start, step, rows, causal)
            gain.sub_(positive[b]).mul_(-2)
            seen = slice(group.start if causal else 0, length)
            for h in range(heads):
                gain[..., seen].addcmul_(parts.weights[b, h, group, seen], value_sums[b, h, group])
            gain[:, :, group].diagonal(dim1=1, dim2=2).add_(residual[:, group].sum(-1))

    empty = parts.resultant.new_empty
    held_numbers = samples * step * rows * chunk.strip(width)
    buffers = [(empty(held_numbers), empty(samples * held * heads * width)) for _ in range(chunk.workers)]
    run_all([partial(work, *pair) for pair in buffers])
    return contributions


@without_python
def add_maxima(
    gain: Tensor,
    weights: Tensor,
    products: Tensor,
    residual: Tensor,
    resultants: list[Tensor],
    buffer: Tensor,
    first: int,
    step: int,
    rows: int,
    causal: bool,
) -> None:
    """Add sum_d max(T_i(x_j), y_i) to `gain` [b, j, Ti], for a group of sources j that starts at token `first`.

    `weights` [b, j, Ti, H] and `products` [b, j, H, D] make the transformed vectors; `residual` [b, T, D] is added to
    that of a token to itself. `resultants` are strips [b, Ti, d] of the block's output y. `buffer` holds the vectors of
    one tile of `step` sources and `rows` destinations. The inner loop is over sources, so that a strip of y stays in
    the cache. With `causal` destinations before a source are skipped.
    """
    samples, sources, length, _ = weights.shape
    start = 0
    for resultant in resultants:
        width = resultant.size(-1)
        for low in range(first if causal else 0, length, rows):
            high = min(length, low + rows)
            end = min(sources, high - first) if causal else sources
            for j in range(0, end, step):
                stop = min(end, j + step)
                i = max(low, first + j) if causal else low
                shape = [samples, stop - j, high - i, width]
                vectors = buffer[: samples * (stop - j) * (high - i) * width].view(shape)
                left = weights[:, j:stop, i:high].flatten(0, 1)
                right = products[:, j:stop, :, start : start + width].flatten(0, 1)
                torch.bmm(left, right, out=vectors.flatten(0, 1))
                begin, past = max(i, first + j), min(high, first + stop)  # the tokens that are source and destination
                if begin < past:
                    block = vectors[:, begin - first - j : past - first - j, begin - i : past - i]
                    of_tokens = residual[:, begin:past, start : start + width]
                    block.diagonal(dim1=1, dim2=2).add_(of_tokens.transpose(1, 2))
                torch.maximum(vectors, resultant[:, i:high].unsqueeze(1), out=vectors)
                gain[:, j:stop, i:high].add_(vectors.sum(-1))
        start += width


def extents(n: int, length: int, chunk: Chunk) -> tuple[int, int, int, int]:
    """The sizes by which a layer is cut: (samples, sources that are held, sources of a tile, destinations of a tile).

    Samples times the tile's sources and destinations are at most `chunk.vectors`. Tiles get as many destinations as
    possible. At least the sources of one tile are held.
    """
    rows = min(length, chunk.vectors)
    step = min(length, chunk.vectors // rows)
    samples = min(n, chunk.vectors // (rows * step))
    return samples, min(length, max(step, chunk.sources // samples)), step, rows


def value_output(value: Tensor, output: Tensor, buffer: Tensor) -> Tensor:
    """The value-output vectors value[h, j] @ output[h], [b, j, H, D], of values [b, H, j, K] and weights [H, K, D].

    They are written into `buffer`, heads outermost, so that the matrix product needs no copy.
    """
    b, heads, j, _ = value.shape
    width = output.shape[-1]
    products = buffer[: heads * b * j * width].view(heads, b * j, width)
    torch.bmm(value.transpose(0, 1).flatten(1, 2), output, out=products)
    return products.view(heads, b, j, width).permute(1, 2, 0, 3)


def slices(stop: int, step: int) -> Iterator[slice]:
    """Yield consecutive slices of `step` numbers, the last one shorter, that cover 0 to `stop`."""
    for at in range(0, stop, step):
        yield slice(at, min(at + step, stop))
