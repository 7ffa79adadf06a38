"""A forward pass of the model in which every attention block is decomposed while its tensors exist.

Maps of the layers are multiplied in the order of the forward, so each block is met once (offloaded weights are loaded
once), and of one layer only what its visitor keeps survives.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from math import log
from typing import Any

import torch
from torch import Tensor, nn

from alti.threads import run_all
from lrp_core.device.precision import wide_dtype
from lrp_core.parts.block import BlockView
from lrp_core.readers.attention import Attended, Kernel, around_attention
from lrp_core.records.types import UnsupportedModel
from lrp_core.views.view import ModelView

_CACHED = 2**20  # numbers that stay in the cache of a CPU from one elementwise operation to the next


@dataclass(frozen=True)
class Layer:
    """An attention block behind its output projection; the model's own numbers in the model's dtype.

    ALTI computes in `dtype`: float64 for float64 models, float32 for all others. Differences of norms of nearly equal
    vectors need it; half-precision models only lend their own queries, keys, values and residual streams.
    """

    index: int
    block: BlockView
    residual: Tensor  # [B, T, D], the block's input
    query: Tensor  # [B, H, T, K], as attention sees it, rotated where the family rotates
    key: Tensor  # [B, G, T, K]
    value: Tensor  # [B, G, T, K]
    attended: Tensor  # [B, T, D], what the output projection makes of the weighted values, its bias included
    allowed: Tensor  # [B | 1, Ti, Tj] bool
    scaling: float

    @property
    def causal(self) -> bool:
        """True if `allowed` hides from every destination the tokens behind it."""
        return self.block.family.kind.causal

    @property
    def dtype(self) -> torch.dtype:
        return wide_dtype(self.residual.dtype)

    def values(self) -> Tensor:
        """[B, H, T, K], each head with the values of its group."""
        return self._per_head(self.value)

    def weights(self, workers: int = 1) -> Tensor:
        """Attention weights [B, H, Tj, Ti], sources first; meaningless for destinations that see nothing (padding)."""
        mask = self._mask()
        query = self.query.to(self.dtype) * (self.scaling / log(2))
        scores = self._per_head(self.key) @ query.transpose(2, 3)
        together = scores.shape[1]
        if not scores.is_cuda:
            together = max(1, _CACHED // scores[:, 0].numel())
        parts = iter(scores.split(together, 1))  # for all workers
        run_all([partial(_softmax_over_sources, parts, mask)] * workers)
        return scores

    def at(self, position: Tensor) -> Layer:
        """This block with one destination for each sample [B]: residual, query, attended and allowed are rows."""
        at = torch.arange(len(position), device=position.device)
        residual, attended = self.residual[at, position].unsqueeze(1), self.attended[at, position].unsqueeze(1)
        query = self.query[at, :, position].unsqueeze(2)
        allowed = self.allowed.expand(len(at), -1, -1)[at, position].unsqueeze(1)
        return replace(self, residual=residual, query=query, attended=attended, allowed=allowed)

    def _mask(self) -> Tensor:
        """Mask to add to scores, [B | 1, 1, Tj, Ti], laid out like them: other strides would cost more than the sum."""
        hidden = ~self.allowed.transpose(1, 2).contiguous().unsqueeze(1)
        return torch.zeros_like(hidden, dtype=self.dtype).masked_fill_(hidden, torch.finfo(self.dtype).min)

    def _per_head(self, grouped: Tensor) -> Tensor:
        return grouped.to(self.dtype).repeat_interleave(self.query.shape[1] // grouped.shape[1], dim=1)


def _softmax_over_sources(scores: Iterator[Tensor], mask: Tensor) -> None:
    """In place, of binary logarithms [B, h, Tj, Ti]: unlike those of e, powers of two underflow at full speed."""
    for some in scores:
        some.add_(mask)
        some.sub_(some.amax(-2, keepdim=True)).exp2_()
        some.div_(some.sum(-2, keepdim=True))


@contextmanager
def visiting(view: ModelView, visit: Callable[[Layer], None]) -> Iterator[None]:
    """Inside, every attention block of a forward is handed to `visit` once its output projection has run."""
    with ExitStack() as undo:
        around = {}
        for index, block in enumerate(view.blocks):
            visitor = _Visitor(index, block, visit)
            undo.enter_context(block.module.register_forward_pre_hook(visitor.enter))
            undo.enter_context(block.output.register_forward_hook(visitor.leave))
            around[block.attention] = visitor.attend
        undo.enter_context(around_attention(view, around, stock="sdpa"))
        yield


class _Visitor:
    """Puts one block's numbers together, in the order in which a forward comes by."""

    def __init__(self, index: int, block: BlockView, visit: Callable[[Layer], None]) -> None:
        self.index, self.block, self.visit = index, block, visit
        self.seen: dict[str, Any] = {}

    def enter(self, _: nn.Module, args: tuple[Tensor, ...]) -> None:
        self.seen["residual"] = args[0]

    def attend(self, kernel: Kernel, module: nn.Module, *tensors: Any, **options: Any) -> Attended:
        query, key, value, mask = tensors
        scaling = options.get("scaling")
        allowed = _allowed(mask, query, causal=self.block.family.kind.causal)
        scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
        self.seen |= {"query": query, "key": key, "value": value, "allowed": allowed, "scaling": scaling}
        return kernel(module, *tensors, **options)

    def leave(self, _: nn.Module, __: tuple[Tensor, ...], output: Tensor) -> None:
        seen, self.seen = self.seen, {}
        seen["residual"] = seen["residual"].to(output.device)
        self.visit(Layer(self.index, self.block, attended=output.view_as(seen["residual"]), **seen))


def _allowed(mask: Tensor | None, query: Tensor, causal: bool) -> Tensor:
    """[B | 1, Ti, Tj] from the mask that transformers makes for sdpa: None where the causal flag says it all."""
    if mask is None:
        every = torch.ones(1, query.shape[2], query.shape[2], dtype=torch.bool, device=query.device)
        return every.tril_() if causal else every
    if mask.dtype != torch.bool or mask.shape[1] != 1:
        raise UnsupportedModel("ALTI does not cover attention with additive biases")
    return mask[:, 0]
