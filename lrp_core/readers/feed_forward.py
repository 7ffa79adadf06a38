"""Access to the neurons of feed-forward layers: the input of the down projection of an MLP, or of each expert.

MLPs are modules, whose inputs a hook can see. The experts of a mixture are one module, and transformers' kernels pass
from their activation to their output without a module between. So for experts that are looked at a kernel is registered
that computes what transformers' eager code does, in its order, and shows what enters each down projection. On
other devices than the CPU all experts run at once: one after the other, the host would wait in every layer.
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

from lrp_core.device.expert_rows import ExpertRows
from lrp_core.parts.block import BlockView, FeedForward


@dataclass(frozen=True)
class Passing:
    """Neurons that every token has: [B, T, F], or [B * T, F] in families that flatten batches."""

    part: FeedForward
    count: int  # of tokens of the flattened batch, padding included

    def spread(self, x: Tensor, shape: Sequence[int]) -> Tensor:
        """The passing values as [B, T, F], of a batch of the `shape` [B, T]; 0 for tokens that were not sent here."""
        return x.view(*shape, -1)

    def gathered(self, x: Tensor, like: Tensor) -> Tensor:
        """Spread values [B, T, F] as they pass, in the form of `like`."""
        return x.view_as(like)

    def there(self, mask: Tensor) -> Tensor:
        """Those tokens of a `mask` [B, T] that were sent here, bool."""
        return mask.bool()


@dataclass(frozen=True)
class PassingTokens(Passing):
    """Neurons of an expert for the n tokens that were sent to it, [n, F]."""

    tokens: Tensor  # [n], of the flattened batch

    def spread(self, x: Tensor, shape: Sequence[int]) -> Tensor:
        x = x.new_zeros(self.count, x.shape[-1]).index_add(0, self.tokens, x)
        return x.view(*shape, -1)

    def gathered(self, x: Tensor, like: Tensor) -> Tensor:
        return x.flatten(0, 1)[self.tokens]

    def there(self, mask: Tensor) -> Tensor:
        sent = torch.zeros(self.count, dtype=torch.bool, device=self.tokens.device)
        sent[self.tokens] = True
        return sent.view(mask.shape) & mask.bool().to(sent.device)


@dataclass(frozen=True)
class PassingRows(Passing):
    """Neurons of an expert, numbered `expert`, among the rows of all experts, [S, F]."""

    expert: int
    rows: ExpertRows

    def spread(self, x: Tensor, shape: Sequence[int]) -> Tensor:
        sent, row = self.rows.of_expert(self.expert)
        return x[row].masked_fill(~sent[:, None], 0).view(*shape, -1)

    def gathered(self, x: Tensor, like: Tensor) -> Tensor:
        """`like` with the rows of this expert replaced."""
        of_expert = self.rows.chosen[self.rows.tokens, self.rows.ranks] == self.expert
        return torch.where(of_expert[:, None], x.flatten(0, 1)[self.rows.tokens], like)

    def there(self, mask: Tensor) -> Tensor:
        sent, _ = self.rows.of_expert(self.expert)
        return sent.view(mask.shape) & mask.bool().to(sent.device)


def where_sent(chosen: Tensor, experts: int) -> list[tuple[Tensor, Tensor]]:
    """The positions of each expert's number in `chosen` [M, N], as indices of both axes, in order.

    How often each is chosen decides shapes, so this is for the CPU: a device would be waited for.
    """
    flat = chosen.flatten()
    counts = (flat == torch.arange(experts, device=flat.device)[:, None]).sum(1).tolist()
    by_expert = flat.argsort(stable=True).split(counts)
    return [(entries // chosen.shape[1], entries % chosen.shape[1]) for entries in by_expert]


#: Sees the inputs of a down projection, in one of the forms of `Passing`, and may give others in their place.
Visit = Callable[[Tensor, Passing], Tensor | None]

_OPEN = "closelook_open"
_visits: WeakKeyDictionary[nn.Module, list[Visit]] = WeakKeyDictionary()


def _open_experts(module: Any, states: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
    """The joint output [N, D] of experts for states [N, D], those `chosen` [N, k] with their `weights` [N, k].

    Experts that no token was sent to are visited, too.
    """
    if states.device.type != "cpu":
        return _open_experts_at_once(module, states, chosen, weights)
    output = torch.zeros_like(states)
    parts = FeedForward.of_experts(module)
    for part, (rank, tokens) in zip(parts, where_sent(chosen.T, len(parts)), strict=True):
        assert part.expert is not None
        gate, up = nn.functional.linear(states[tokens], module.gate_up_proj[part.expert]).chunk(2, dim=-1)
        x = module.act_fn(gate) * up
        for visit in _visits[module]:
            changed = visit(x, PassingTokens(part, len(states), tokens))
            x = x if changed is None else changed
        weighted = nn.functional.linear(x, module.down_proj[part.expert]) * weights[tokens, rank, None]
        output.index_add_(0, tokens, weighted.to(output.dtype))
    return output


def _open_experts_at_once(module: Any, states: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
    """As `_open_experts`, up to rounding, for a device: the host does not wait for how many tokens an expert has."""
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
    return outputs[rows.row_of].sum(1).to(states.dtype)


ExpertsInterface.register(_OPEN, _open_experts)


@contextmanager
def at_neurons(block: BlockView, visit: Visit) -> Iterator[None]:
    """Inside, `visit` sees what enters each down projection of the block, once a forward."""
    with ExitStack() as undo:
        for part in block.feed_forwards:
            if part.expert is None:
                hook = partial(_seen, part=part, visit=visit)
                undo.callback(block.down.register_forward_pre_hook(hook).remove)
        if block.experts is not None:
            undo.enter_context(_opened(block.experts.all, visit))
        yield


@contextmanager
def _opened(experts: Any, visit: Visit) -> Iterator[None]:
    """Experts read the choice of their kernel in a config of their own, since they share theirs with the model."""
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
    x, *rest = args
    changed = visit(x, Passing(part, x.shape[:-1].numel()))
    return None if changed is None else (changed, *rest)
