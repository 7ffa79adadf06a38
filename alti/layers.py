"""A forward pass of the model in which a visitor sees the tensors of every attention block while they exist.

Layers are visited in the order of the forward, so offloaded weights are loaded once, and only what the visitor keeps of
a layer stays in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from closelook.lrp_core.device.precision import wide_dtype
from closelook.lrp_core.parts.block import BlockView
from closelook.lrp_core.parts.layers import check_unaltered
from closelook.lrp_core.readers.attention import Attended, Kernel, around_attention
from closelook.lrp_core.records.types import UnsupportedModel
from closelook.lrp_core.views.view import ModelView


@dataclass(frozen=True)
class Layer:
    """The tensors of one attention block in a forward pass, in the model's dtype.

    ALTI computes in `dtype`: float64 for float64 models, float32 for all others, since it takes differences of nearly
    equal norms.
    """

    index: int  # of the block
    block: BlockView
    residual: Tensor  # [B, T, D], the block's input
    query: Tensor  # [B, H, T, K], after rotary positions, if the family has them
    key: Tensor  # [B, G, T, K]
    value: Tensor  # [B, G, T, K]
    attended: Tensor  # [B, T, D], the output of the output projection, bias included
    allowed: Tensor  # [B | 1, Ti, Tj], True where a destination may attend to a source
    scaling: float  # of scores

    @property
    def causal(self) -> bool:
        """True if no destination may attend to later tokens."""
        return self.block.family.kind.causal

    @property
    def dtype(self) -> torch.dtype:
        """The dtype in which ALTI computes."""
        return wide_dtype(self.residual.dtype)

    def values(self) -> Tensor:
        """The values [B, H, T, K]; each head has those of its group."""
        return self._per_head(self.value)

    def weights(self) -> Tensor:
        """Attention weights [B, H, Tj, Ti], sources before destinations; meaningless for destinations on padding."""
        scores = self._per_head(self.key) @ (self.query.to(self.dtype) * self.scaling).transpose(2, 3)
        hidden = ~self.allowed.mT.unsqueeze(1)  # [B | 1, 1, Tj, Ti]
        return scores.masked_fill_(hidden, torch.finfo(self.dtype).min).softmax(-2)

    def at(self, position: Tensor) -> Layer:
        """The block for some destinations of each sample, the tokens at `position` [B, N].

        Residual, query, attended and allowed have N destinations; keys and values stay whole.
        """
        at = torch.arange(len(position), device=position.device)[:, None]
        residual, attended = self.residual[at, position], self.attended[at, position]
        query = self.query[at, :, position].transpose(1, 2)
        allowed = self.allowed.expand(len(at), -1, -1)[at, position]
        return replace(self, residual=residual, query=query, attended=attended, allowed=allowed)

    def _per_head(self, grouped: Tensor) -> Tensor:
        """Keys or values [B, G, T, K] repeated for the heads of each group, [B, H, T, K], in `dtype`."""
        return grouped.to(self.dtype).repeat_interleave(self.query.shape[1] // grouped.shape[1], dim=1)


@contextmanager
def visiting(view: ModelView, visit: Callable[[Layer], None]) -> Iterator[None]:
    """Inside, every forward calls `visit` with the Layer of each block, right after its output projection has run.

    Raises UnsupportedMethod for blocks that compute something else than their weights say.
    """
    with ExitStack() as undo:
        around = {}
        for index, block in enumerate(view.blocks):
            check_unaltered(block.module.modules())
            visitor = _Visitor(index, block, visit)
            undo.enter_context(block.module.register_forward_pre_hook(visitor.enter))
            undo.enter_context(block.output.register_forward_hook(visitor.leave))
            around[block.attention] = visitor.attend
        undo.enter_context(around_attention(view, around, stock="sdpa"))
        yield


class _Visitor:
    """Hooks of one block that collect the fields of its Layer and call `visit` with it."""

    def __init__(self, index: int, block: BlockView, visit: Callable[[Layer], None]) -> None:
        self.index, self.block, self.visit = index, block, visit
        self.seen: dict[str, Any] = {}  # fields of the Layer so far

    def enter(self, _: nn.Module, args: tuple[Tensor, ...]) -> None:
        """Pre-hook of the block: keeps its input."""
        self.seen["residual"] = args[0]

    def attend(self, kernel: Kernel, module: nn.Module, *tensors: Any, **options: Any) -> Attended:
        """Stands in for the attention kernel: keeps its inputs and runs it."""
        query, key, value, mask = tensors
        scaling = options.get("scaling")
        allowed = _allowed(mask, query, causal=self.block.family.kind.causal)
        scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
        self.seen |= {"query": query, "key": key, "value": value, "allowed": allowed, "scaling": scaling}
        return kernel(module, *tensors, **options)

    def leave(self, _: nn.Module, __: tuple[Tensor, ...], output: Tensor) -> None:
        """Forward hook of the output projection: calls `visit` with the Layer."""
        seen, self.seen = self.seen, {}
        seen["residual"] = seen["residual"].to(output.device)
        self.visit(Layer(self.index, self.block, attended=output.view_as(seen["residual"]), **seen))


def _allowed(mask: Tensor | None, query: Tensor, causal: bool) -> Tensor:
    """The mask [B | 1, Ti, Tj] of allowed pairs, from the mask that transformers gives the sdpa kernel.

    transformers gives None if the causal flag suffices. Raises UnsupportedModel for masks that are additive or
    differ by head.
    """
    if mask is None:
        every = torch.ones(1, query.shape[2], query.shape[2], dtype=torch.bool, device=query.device)
        return every.tril_() if causal else every
    if mask.dtype != torch.bool or mask.shape[1] != 1:
        raise UnsupportedModel("vector-based methods cover no masks that add biases or differ by head: use another")
    return mask[:, 0]
