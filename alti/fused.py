"""The GPU kernel of ALTI's contributions: transformed vectors exist in registers only. Needs Triton."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from closelook.alti.transformed import AttentionParts, Chunk, slices, value_output

_DESTINATIONS = 64  # destinations of one program
_WIDTH = 64  # entries of a vector that are in registers at a time


def contributions(parts: AttentionParts, chunk: Chunk) -> Tensor:
    """As `alti.transformed.contributions`, in float32, for tensors on a GPU; `chunk.vectors` is not used.

    The difference |y| - |y - T| is computed for each entry before it is summed, so no digits are lost.
    """
    n, heads, length, _ = parts.weights.shape
    width = parts.output.shape[-1]
    gain = parts.resultant.new_zeros(n, length, length)  # [B, Tj, Ti]
    weights, residual, resultant = (x.contiguous() for x in (parts.weights, parts.residual, parts.resultant))
    block = min(_DESTINATIONS, max(16, triton.next_power_of_2(length)))
    causal = parts.causal
    samples = max(1, min(n, chunk.sources // length))
    held = min(length, max(1, chunk.sources // samples))
    for b in slices(n, samples):
        for j in slices(length, held):
            products = value_output(parts.value[b, :, j], parts.output)  # [b, j, H, D]
            grid = (triton.cdiv(length, block), j.stop - j.start, b.stop - b.start)
            _gain[grid](
                weights[b],
                products,
                residual[b],
                resultant[b],
                gain[b],
                j.start,
                j.stop - j.start,
                length,
                CAUSAL=causal,
                HEADS=heads,
                PADDED_HEADS=max(16, triton.next_power_of_2(heads)),
                WIDTH=width,
                BLOCK=block,
                STEP=_WIDTH,
            )
    return gain.transpose(1, 2)


@triton.jit
def _gain(
    weights,  # [b, H, Tj, Ti]
    products,  # [b, j, H, D], heads outermost in memory
    residual,  # [b, T, D]
    resultant,  # [b, T, D]
    gain,  # [b, Tj, Ti], zeros
    first,  # source of products[:, 0]
    n_sources,
    length,
    CAUSAL: tl.constexpr,
    HEADS: tl.constexpr,
    PADDED_HEADS: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    STEP: tl.constexpr,
):
    """A program of the kernel: writes the contributions of one source to BLOCK destinations of one sample."""
    sample = tl.program_id(2).to(tl.int64)
    at = tl.program_id(1)
    source = first + at
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    if CAUSAL and (tl.program_id(0) + 1) * BLOCK <= source:
        return
    h = tl.arange(0, PADDED_HEADS)
    inside = (i[:, None] < length) & (h[None, :] < HEADS)
    w_at = ((sample * HEADS + h[None, :]) * length + source) * length + i[:, None]
    w = tl.load(weights + w_at, mask=inside, other=0.0)  # [BLOCK, H]
    total = tl.zeros([BLOCK], dtype=tl.float32)
    for start in range(0, WIDTH, STEP):
        d = start + tl.arange(0, STEP)
        u_at = ((h[:, None] * tl.num_programs(2) + sample) * n_sources + at) * WIDTH + d[None, :]
        u = tl.load(products + u_at, mask=(h[:, None] < HEADS) & (d[None, :] < WIDTH), other=0.0)  # [H, STEP]
        vector = tl.dot(w, u, input_precision="ieee")  # [BLOCK, STEP]
        diagonal = tl.load(residual + (sample * length + source) * WIDTH + d, mask=d < WIDTH, other=0.0)
        vector += tl.where(i[:, None] == source, diagonal[None, :], 0.0)
        y_at = (sample * length + i[:, None]) * WIDTH + d[None, :]
        y = tl.load(resultant + y_at, mask=(i[:, None] < length) & (d[None, :] < WIDTH), other=0.0)
        total += tl.sum(tl.abs(y) - tl.abs(y - vector), axis=1)
    tl.store(gain + (sample * length + source) * length + i, tl.maximum(total, 0.0), mask=i < length)
