"""Access to the neurons of feed-forward layers: the input of the down projection of an MLP, or of each expert.

For an MLP a hook on the down projection sees them. The experts of a mixture are one module that calls no module for its
down projections. So another kernel is registered for experts: it computes the same as transformers' eager code, and
calls visitors with the inputs of the down projections.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from transformers.integrations.moe import ExpertsInterface

from closelook.lrp_core.device.expert_rows import ExpertRows
from closelook.lrp_core.parts.block import BlockView, FeedForward
from closelook.lrp_core.parts.layers import check_unaltered


@dataclass(frozen=True)
class Passing:
    """Describes the layout of activations x that a visitor gets, for neurons that every token has.

    x is [B, T, F], or [B * T, F] in families that flatten batches.
    """

    part: FeedForward  # the part that has the neurons
    count: int  # the number of tokens B * T, padding included

    def spread(self, x: Tensor, shape: Sequence[int]) -> Tensor:
        """x as [B, T, F], with `shape` [B, T]; 0 for tokens that were not sent to this part."""
        return x.view(*shape, -1)

    def gathered(self, x: Tensor, like: Tensor) -> Tensor:
        """The inverse of `spread`: from [B, T, F] to the layout of `like`, the x that the visitor got."""
        return x.view_as(like)

    def there(self, mask: Tensor) -> Tensor:
        """True for the tokens of `mask` [B, T] that were sent to this part."""
        return mask.bool()


@dataclass(frozen=True)
class PassingRows(Passing):
    """Activations [S, F] of all experts together; the visitor is called for the rows of one of them."""

    expert: int  # the number of this expert
    rows: ExpertRows  # which expert and token each row belongs to

    def spread(self, x: Tensor, shape: Sequence[int]) -> Tensor:
        sent, row = self.rows.of_expert(self.expert)
        return x[row].masked_fill(~sent[:, None], 0).view(*shape, -1)

    def gathered(self, x: Tensor, like: Tensor) -> Tensor:
        """`like` with the rows of this expert replaced by those of x [B, T, F]."""
        of_expert = self.rows.chosen[self.rows.tokens, self.rows.ranks] == self.expert
        return torch.where(of_expert[:, None], x.flatten(0, 1)[self.rows.tokens], like)

    def there(self, mask: Tensor) -> Tensor:
        sent, _ = self.rows.of_expert(self.expert)
        return sent.view(mask.shape) & mask.bool().to(sent.device)


#: A visitor: called with the input x of a down projection and its layout; may return another input, or None to keep x.
Visit = Callable[[Tensor, Passing], Tensor | None]

_OPEN = "closelook_open"
_visits: WeakKeyDictionary[nn.Module, list[Visit]] = WeakKeyDictionary()


def _open_experts(module: Any, states: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
    """The output [N, D] of experts for states [N, D], from the `chosen` experts [N, k] and their `weights` [N, k].

    Calls the visitors of the module for every expert, also for those that no token was sent to.
    """
    rows = ExpertRows.of(chosen, len(module.down_proj))
    gate, up = rows.product(states[rows.tokens], module.gate_up_proj).chunk(2, dim=-1)
    x = module.act_fn(gate) * up  # [S, F]
    for part in FeedForward.of_experts(module):
        assert part.expert is not None
        passing = PassingRows(part, len(states), part.expert, rows)
        for visit in _visits[module]:
            changed = visit(x, passing)
            x = x if changed is None else changed
    outputs = rows.product(x, module.down_proj) * weights[rows.tokens, rows.ranks, None]
    if outputs.device.type == "cpu":  # in the order of transformers' eager code; elsewhere the order would be by chance
        return torch.zeros_like(states).index_add(0, rows.tokens, outputs.to(states.dtype))
    return outputs[rows.row_of].sum(1).to(states.dtype)


ExpertsInterface.register(_OPEN, _open_experts)


@contextmanager
def at_neurons(block: BlockView, visit: Visit) -> Iterator[None]:
    """Inside, every forward calls `visit(x, passing)` once for each part of the block that has neurons.

    x is the input of its down projection, `passing` the layout of x; a tensor that `visit` returns replaces x. Raises
    UnsupportedMethod for a block that was altered.
    """
    check_unaltered(block.module.modules())
    with ExitStack() as undo:
        for part in block.feed_forwards:
            if part.expert is None:
                hook = partial(_seen, part=part, visit=visit)
                undo.enter_context(block.down.register_forward_pre_hook(hook))
        if block.experts is not None:
            undo.enter_context(_opened(block.experts.all, visit))
        yield


@contextmanager
def _opened(experts: Any, visit: Visit) -> Iterator[None]:
    """Inside, experts run the kernel that calls visitors, and `visit` is one of them.

    They read the choice of kernel from a copy of their config, since they share the original with the model.
    """
    outer, config = _visits.get(experts, []), experts.config
    _visits[experts] = [*outer, visit]
    experts.config = copy.copy(config)
    experts.config._experts_implementation = _OPEN
    try:
        yield
    finally:
        experts.config = config
        if outer:
            _visits[experts] = outer
        else:
            del _visits[experts]


def _seen(_: nn.Module, args: tuple[Any, ...], *, part: FeedForward, visit: Visit) -> tuple[Any, ...] | None:
    """Forward pre-hook of a down projection: calls `visit` with its input, and replaces it by what that returns."""
    x, *rest = args
    changed = visit(x, Passing(part, x.shape[:-1].numel()))
    return None if changed is None else (changed, *rest)
