"""Bytes that a batch needs, and the cut of samples into groups that fit.

Predicted is the peak of the bytes that live beyond the weights: the forward's own, and those of one layer's map. The
terms follow the code of `layers`, `maps` and `transformed` in the order in which they come alive.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import ceil

import psutil
import torch

from alti.kernel import fused_on
from alti.transformed import Chunk, extents
from lrp_core.device.precision import wide_dtype
from lrp_core.records.types import UserError
from lrp_core.views.view import ModelView

_SOURCES = {"cpu": 64, "cuda": 256}  # tokens whose value-output vectors are made by one product: enough to keep it busy
_VECTOR_BYTES = {"cpu": 2**20, "cuda": 2**26}  # transformed vectors: on a CPU, half of what a core's own cache holds
_WIDTH = {"cpu": 512, "cuda": 2**30}  # entries of a vector at a time, so that many destinations are cached together
_WORTH_THREADS = 2**23  # entries of transformed vectors of a layer, some milliseconds of work
_COMPOSED = 4  # tensors [T, d_mlp] that gelu_new, made of elementary operations, holds at its peak
_SPREAD = 2  # a batch is cut where its samples would be padded to more than this many times their length


@dataclass(frozen=True)
class MemoryNeeds:
    """The properties of a model and a device that decide the bytes, apart from the batch."""

    n_heads: int
    n_kv_heads: int
    head_dim: int
    d_model: int
    mlp_width: int  # of all that the MLP holds at its peak, for one token
    residual_copies: int  # tensors [T, D] of the model that outlive its attention kernels
    model_bytes: int  # of one number in the forward
    work_bytes: int  # of one number in the maps
    post_norm: bool
    device: str  # cpu | cuda
    threads: int  # that may work on a layer
    fused: bool  # whether transformed vectors stay in the kernel's registers

    @classmethod
    def of(cls, view: ModelView) -> MemoryNeeds:
        post_norm = view.family.norm_order == "post"
        device = view.device.type if view.device.type in _VECTOR_BYTES else "cpu"
        work = wide_dtype(view.dtype)
        held = 2 if view.family.gate is None else 3  # tensors as wide as the MLP
        if "new" in view.activation_name:
            held = _COMPOSED
        return cls(
            n_heads=view.n_heads,
            n_kv_heads=view.n_kv_heads,
            head_dim=view.head_dim,
            d_model=view.d_model,
            mlp_width=held * max(block.mlp_width for block in view.blocks),
            residual_copies=2 if post_norm else 3 + (view.family.position_embedding is not None),
            model_bytes=view.dtype.itemsize,
            work_bytes=work.itemsize,
            post_norm=post_norm,
            device=device,
            threads=torch.get_num_threads() if view.device.type == "cpu" else 1,
            fused=device == "cuda" and work == torch.float32 and fused_on(view.device),
        )

    def chunk(self, batch: int, length: int) -> Chunk:
        """The chunk that is fast when memory is plenty."""
        width = ceil(self.d_model / ceil(self.d_model / _WIDTH[self.device]))
        vectors = _VECTOR_BYTES[self.device] // (width * self.work_bytes)
        workers = self.threads if batch * length**2 * self.d_model >= _WORTH_THREADS else 1
        sources = min(_SOURCES[self.device], batch * length)
        return Chunk(sources, max(1, min(vectors, batch * length * length)), workers, width)


@dataclass(frozen=True)
class MemoryPlan:
    """The samples and the chunk that are computed at once, and the bytes that they take."""

    batch: int
    length: int
    chunk: Chunk
    bytes: int  # predicted peak beyond the weights
    byte_budget: int

    @property
    def smallest(self) -> bool:
        return self.batch == 1 and self.chunk.is_smallest

    def halved(self, batch: int) -> MemoryPlan:
        """For `batch` samples after memory ran out: the same chunk for half the samples, or half the chunk for one."""
        return replace(self, batch=batch, chunk=self.chunk if self.batch > 1 else smaller(self.chunk))


def predict(geometry: MemoryNeeds, batch: int, length: int, chunk: Chunk) -> int:
    """Peak bytes beyond the weights for `batch` samples of `length` tokens."""
    g, tokens, pairs = geometry, batch * length, batch * length * length
    converted = g.model_bytes != g.work_bytes
    heads = g.n_heads * g.head_dim
    held = tokens * g.residual_copies * g.d_model * g.model_bytes  # embeddings, residual stream
    mlp = tokens * (g.d_model + g.mlp_width) * g.model_bytes
    kernel = tokens * (2 * heads + 2 * g.n_kv_heads * g.head_dim) * g.model_bytes  # query, context, key, value
    kernel += 0 if g.post_norm else tokens * g.d_model * g.model_bytes  # normalised input
    rollout = pairs * (g.work_bytes + 1)  # and the mask
    weights = pairs * g.n_heads * g.work_bytes
    softmax = weights + (pairs + 2 * tokens * heads) * g.work_bytes + pairs  # in place, beside mask, queries and keys
    streams = tokens * (g.d_model + heads) * g.work_bytes  # resultant and values
    projection = heads * g.d_model * g.work_bytes
    copied = projection + tokens * g.d_model * g.work_bytes if converted or g.post_norm else 0
    samples, sources, step, rows = extents(batch, length, chunk)
    width = chunk.strip(g.d_model)
    vectors = 0 if g.fused else chunk.workers * samples * step * rows * width
    vectors += 0 if width == g.d_model else tokens * g.d_model  # the resultant in strips
    products = chunk.workers * samples * sources * g.n_heads * g.d_model
    mapping = weights + streams + (vectors + products + pairs) * g.work_bytes
    block = max(copied + max(softmax, mapping), (converted + g.post_norm) * projection + streams)
    return held + max(mlp, kernel + rollout + block)


def plan(geometry: MemoryNeeds, length: int, byte_budget: int, batch: int) -> MemoryPlan:
    """The most samples of `length` tokens, `batch` at most, that the budget holds.

    Raises UserError, with the bytes needed, if one sample at the smallest chunk is too much.
    """
    size, chunk = batch, geometry.chunk(batch, length)
    while (need := predict(geometry, size, length, chunk)) > byte_budget:
        if size > 1:
            size //= 2
            chunk = geometry.chunk(size, length)
        elif not chunk.is_smallest:
            chunk = smaller(chunk)
        else:
            break
    if need <= byte_budget:
        return MemoryPlan(size, length, chunk, need, byte_budget)
    raise UserError(
        f"ALTI needs {need} bytes for one sample of {length} tokens, and the budget is {byte_budget}: "
        "raise byte_budget or drop the longest samples"
    )


def cut(geometry: MemoryNeeds, lengths: Sequence[int], byte_budget: int) -> Iterator[tuple[list[int], MemoryPlan]]:
    """Samples by index, those of like length together, longest first, and the plan for each group."""
    order = sorted(range(len(lengths)), key=lambda i: -lengths[i])
    while order:
        longest = lengths[order[0]]
        near = [i for i in order if lengths[i] * _SPREAD >= longest]
        chosen = plan(geometry, longest, byte_budget, len(near))
        yield near[: chosen.batch], chosen
        order = order[chosen.batch :]


def smaller(chunk: Chunk) -> Chunk:
    """A plan that holds half as much: by half the threads, then by half of each thread's chunk."""
    if chunk.workers > 1:
        return replace(chunk, workers=chunk.workers // 2)
    return replace(chunk, sources=max(1, chunk.sources // 2), vectors=max(1, chunk.vectors // 2))


def free_bytes(device: torch.device) -> int:
    """Bytes that may be taken from the device now: unused blocks of the allocator count, a tenth is left out."""
    if device.type == "cuda":
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(0.9 * (torch.cuda.mem_get_info(device)[0] + unused))
    return int(0.9 * psutil.virtual_memory().available)
