"""Numerical derivatives as a check of relevance under a composite's rules.

The relevance of a token is the derivative of the explained number with respect to a factor on the token's embedding,
while everything that the rules hold constant stays the same (`lrp_core.verification.held`). Central differences compute
it without a gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from lrp_core.records.explained import whichever
from lrp_core.records.types import Batch
from lrp_core.records.variants import tiled
from lrp_core.rules import ATTNLRP, LRP, PLAIN, Composite
from lrp_core.rules.scope import rules_on
from lrp_core.verification.held import held
from lrp_core.verification.record import Gap
from lrp_core.verification.rounding import MARGIN, Rounded, distance, largest, unit_of
from lrp_core.views.view import ModelView

#: The relative step on an embedding, by dtype: small enough for curvature and large enough for rounding.
STEPS = {torch.float64: 2.0**-13, torch.float32: 2.0**-7}
_SLOTS = {"normalization": "norms", "activation": "activations", "bilinear": "products"}


def composites_to_check() -> dict[str, Composite]:
    """The composites to check, by title: the true gradient, each rule alone, and all rules of LRP and of AttnLRP."""
    checked = {"true gradient": PLAIN}
    for composite in (LRP, ATTNLRP):
        for slot, title in _SLOTS.items():
            rule = getattr(composite, slot)
            slots: dict[str, Any] = {slot: rule}
            checked[f"{title}: {rule.name}"] = Composite(f"{title} alone, {rule.name}", **slots)
    for composite in (LRP, ATTNLRP):
        checked[f"all rules of {composite.name}"] = composite
    return checked


@dataclass(frozen=True)
class Entrance:
    """The point of the model at which states are changed: its token embeddings, or the input of a block."""

    block: nn.Module | None = None  # None: the token embeddings

    @contextmanager
    def changed(self, change: Callable[[Tensor], Tensor]) -> Iterator[None]:
        """Inside, forwards apply `change` to the input of the block; nothing happens for the token embeddings."""
        if self.block is None:
            yield
            return

        def hook(_: nn.Module, args: tuple[Any, ...], options: Mapping[str, Any]) -> Any:
            if args:
                return (change(args[0]), *args[1:]), dict(options)
            return args, {**options, "hidden_states": change(options["hidden_states"])}

        handle = self.block.register_forward_pre_hook(hook, with_kwargs=True)
        try:
            yield
        finally:
            handle.remove()

    def explained(self, view: ModelView, batch: Batch, change: Callable[[Tensor], Tensor]) -> Tensor:
        """The explained number [B] after `change` was applied to the states [B, T, D] at the entrance."""
        tokens = view.tokens(batch)
        with self.changed(change):
            hidden = view.hidden(batch, change(tokens) if self.block is None else tokens)
        return whichever(batch.foil_ids is not None).of(view.logits(hidden, batch))


EMBEDDINGS = Entrance()


def relevance_at(view: ModelView, batch: Batch, composite: Composite, entrance: Entrance) -> Tensor:
    """Relevance [T] of the one sample of a batch under the composite: gradient times state at the entrance."""
    leaves: list[Tensor] = []

    def trace(states: Tensor) -> Tensor:
        leaves.append(states.detach().requires_grad_())
        return leaves[-1]

    with torch.enable_grad(), rules_on(view, [composite]):
        explained = entrance.explained(view, batch, trace)
        (gradient,) = torch.autograd.grad(explained.sum(), leaves)
    return (gradient * leaves[0].detach()).sum(-1)[0]


def differences_at(view: ModelView, batch: Batch, composite: Composite, entrance: Entrance, tokens: int) -> Tensor:
    """Central differences [2, T] for the T `tokens` of the one sample of a batch, with the step and with its double.

    All 1 + 4 T variants run as rows of one batch; the first row is the unchanged sample.
    """
    step = STEPS[view.dtype]
    steps = torch.tensor([step, -step, 2 * step, -2 * step], dtype=view.dtype, device=view.device)
    factors = torch.ones(1 + 4 * tokens, tokens, 1, dtype=view.dtype, device=view.device)
    for token in range(tokens):
        factors[1 + 4 * token : 5 + 4 * token, token, 0] += steps
    rows = tiled(batch, len(factors))
    with torch.no_grad(), held(view, composite, len(factors)):
        numbers = entrance.explained(view, rows, lambda states: states * factors)
    ahead, behind, far_ahead, far_behind = numbers[1:].view(tokens, 4).T
    return torch.stack([(ahead - behind) / (2 * step), (far_ahead - far_behind) / (4 * step)])


def gap_of_derivatives(view: ModelView, batch: Batch, composite: Composite, entrance: Entrance) -> Gap:
    """The gap between relevance under the composite and central differences, for the one sample of a batch.

    It is relative to the largest relevance or the explained number, whichever is larger. Besides rounding, the bound
    contains the error of differences, estimated as the distance between those with the step and with twice the step.
    """
    case = view, batch, composite, entrance
    relevance = Rounded.of(view, lambda: relevance_at(*case), unit_of(view))
    differences = Rounded.of(view, lambda: differences_at(*case, len(relevance.value)), relevance.unit)
    single = differences.map(lambda both: both[0])
    with torch.no_grad():
        explained = EMBEDDINGS.explained(view, batch, lambda states: states)
    scale = torch.cat([relevance.value, explained])
    gap = relevance.gap("", single.value, scale=scale)
    beyond_rounding = distance(*differences.value)
    return replace(gap, bound=gap.bound + (MARGIN * single.change + beyond_rounding) / largest(scale))
