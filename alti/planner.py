"""Predicts the memory that ALTI needs, and cuts samples into groups that fit a budget.

The prediction is the peak of bytes besides the weights: those of the forward pass and of one layer's map. Its terms
follow the code of `layers`, `maps` and `transformed` in the order in which tensors are allocated.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import psutil
import torch

from closelook.alti.kernel import fused_on
from closelook.alti.transformed import Chunk, extents
from closelook.lrp_core.device.precision import wide_dtype
from closelook.lrp_core.records.types import UserError
from closelook.lrp_core.views.view import ModelView

_SOURCES = {"cpu": 64, "cuda": 256}  # tokens whose value-output vectors one product makes, enough to be efficient
_VECTOR_BYTES = {"cpu": 2**21, "cuda": 2**26}  # of transformed vectors at a time; on a CPU, for each thread
_COMPOSED = 4  # tensors [T, d_mlp] that gelu_new, a chain of elementary operations, holds at its peak
_SPREAD = 2  # a sample joins a group if the longest sample has at most this many times its length


@dataclass(frozen=True)
class MemoryNeeds:
    """The properties of a model and a device that determine the memory for a batch."""

    n_heads: int
    n_kv_heads: int
    head_dim: int
    d_model: int
    mlp_width: int  # numbers that the MLP holds for one token, at its peak
    residual_copies: int  # tensors [T, D] of the forward pass that exist while attention and its map are computed
    model_bytes: int  # bytes of a number in the forward pass
    work_bytes: int  # bytes of a number in the maps
    post_norm: bool
    device: str  # cpu | cuda
    vector_bytes: int  # of the transformed vectors that are held at a time, if memory suffices
    fused: bool  # the fused kernel is used, in which transformed vectors take no memory

    @classmethod
    def of(cls, view: ModelView) -> MemoryNeeds:
        """The properties of a loaded model and its device."""
        post_norm = view.family.norm_order == "post"
        device = view.device.type if view.device.type in _VECTOR_BYTES else "cpu"
        work = wide_dtype(view.dtype)
        held = 2 if view.family.gate is None else 3  # tensors as wide as the MLP
        if "new" in view.activation_name:
            held = _COMPOSED
        widest = max(block.mlp_width for block in view.blocks)
        embeds_positions = view.family.position_embedding is not None
        return cls(
            n_heads=view.n_heads,
            n_kv_heads=view.n_kv_heads,
            head_dim=view.head_dim,
            d_model=view.d_model,
            mlp_width=held * widest,
            residual_copies=2 if post_norm else 3 + embeds_positions,
            model_bytes=view.dtype.itemsize,
            work_bytes=work.itemsize,
            post_norm=post_norm,
            device=device,
            vector_bytes=_VECTOR_BYTES[device] * (torch.get_num_threads() if device == "cpu" else 1),
            fused=device == "cuda" and work == torch.float32 and fused_on(view.device),
        )

    def chunk(self, batch: int, length: int) -> Chunk:
        """The fastest chunk for `batch` samples of `length` tokens, if memory suffices."""
        vectors = self.vector_bytes // (self.d_model * self.work_bytes)
        return Chunk(min(_SOURCES[self.device], batch * length), max(1, min(vectors, batch * length**2)))


@dataclass(frozen=True)
class MemoryPlan:
    """The plan of a group: its size, the chunk of a layer that is held at a time, and the memory for both."""

    batch: int  # samples
    length: int  # tokens of the longest
    chunk: Chunk
    bytes: int  # predicted peak beyond the weights
    byte_budget: int

    @property
    def smallest(self) -> bool:
        """True if no plan needs less memory: one sample in the smallest chunk."""
        return self.batch == 1 and self.chunk.is_smallest

    def halved(self, batch: int) -> MemoryPlan:
        """The plan to try after memory ran out: `batch` samples with the same chunk, or with half of it for one.

        `length` and `bytes` stay those of the plan that ran out.
        """
        return replace(self, batch=batch, chunk=self.chunk if self.batch > 1 else self.chunk.half)


def predict(geometry: MemoryNeeds, batch: int, length: int, chunk: Chunk) -> int:
    """The predicted peak of bytes besides the weights, for `batch` samples of `length` tokens in this chunk."""
    g, tokens, pairs = geometry, batch * length, batch * length * length
    converted = g.model_bytes != g.work_bytes
    heads = g.n_heads * g.head_dim
    held = tokens * g.residual_copies * g.d_model * g.model_bytes  # embeddings, residual stream
    mlp = tokens * (g.d_model + g.mlp_width) * g.model_bytes
    kernel = tokens * (2 * heads + 2 * g.n_kv_heads * g.head_dim) * g.model_bytes  # query, context, key, value
    kernel += 0 if g.post_norm else tokens * g.d_model * g.model_bytes  # normalised input
    rollout = pairs * (g.work_bytes + 1)  # and the mask
    weights = pairs * g.n_heads * g.work_bytes
    softmax = 2 * weights + 2 * tokens * heads * g.work_bytes + pairs  # scores, weights, queries, keys, mask
    streams = tokens * (g.d_model + heads) * g.work_bytes  # resultant and values
    projection = heads * g.d_model * g.work_bytes
    copied = projection + tokens * g.d_model * g.work_bytes if converted or g.post_norm else 0
    samples, sources, step, rows = extents(batch, length, chunk)
    vectors = 0 if g.fused else samples * step * rows * g.d_model
    products = samples * sources * g.n_heads * g.d_model
    mapping = weights + streams + (vectors + products + 2 * pairs) * g.work_bytes  # maxima, sums of entries
    block = max(copied + max(softmax, mapping), (converted + g.post_norm) * projection + streams)
    return held + max(mlp, kernel + rollout + block)


def plan(geometry: MemoryNeeds, length: int, byte_budget: int, batch: int) -> MemoryPlan:
    """The plan for as many samples of `length` tokens as the budget holds, at most `batch`.

    Raises UserError, with the bytes needed, if one sample in the smallest chunk needs more than the budget.
    """
    size, chunk = batch, geometry.chunk(batch, length)
    while (need := predict(geometry, size, length, chunk)) > byte_budget:
        if size > 1:
            size //= 2
            chunk = geometry.chunk(size, length)
        elif not chunk.is_smallest:
            chunk = chunk.half
        else:
            raise UserError(
                f"ALTI needs {need} bytes for one sample of {length} tokens, and the budget is {byte_budget}: "
                "raise byte_budget or drop the longest samples"
            )
    return MemoryPlan(size, length, chunk, need, byte_budget)


def cut(geometry: MemoryNeeds, lengths: Sequence[int], byte_budget: int) -> Iterator[tuple[list[int], MemoryPlan]]:
    """Yield groups of samples of similar length, the longest first: (indices into `lengths`, plan)."""
    order = sorted(range(len(lengths)), key=lambda i: -lengths[i])
    while order:
        longest = lengths[order[0]]
        near = [i for i in order if lengths[i] * _SPREAD >= longest]
        chosen = plan(geometry, longest, byte_budget, len(near))
        yield near[: chosen.batch], chosen
        order = order[chosen.batch :]


def free_bytes(device: torch.device) -> int:
    """Nine tenths of the bytes that are free on the device now, unused blocks of torch's allocator included."""
    if device.type == "cuda":
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(0.9 * (torch.cuda.mem_get_info(device)[0] + unused))
    return int(0.9 * psutil.virtual_memory().available)
