"""Numerical derivatives as a check of relevance under a composite's rules.

The relevance of a token is the derivative of the explained number with respect to a factor on the token's embedding,
while everything that the rules hold constant stays the same. Central differences compute it without a gradient: rules
hold factors constant (the standard deviation of norms, the ratio g(z)/z of activations, gates, a share of products), so
a batch of variants of one sample runs with these factors taken from its first row, the unchanged sample. The other rows
then change just as the rules let relevance pass. No gradient and no code of the rules is used.

Under every composite, the first row also decides which side of ReLU's kink each number is on and which experts a router
chooses, since differences across a kink or a jump are no derivatives.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from closelook.lrp_core.device.precision import unrounded
from closelook.lrp_core.methods.gradients import explain_many
from closelook.lrp_core.operations.watching import watched
from closelook.lrp_core.parts.layers import NormView
from closelook.lrp_core.readers.attention import Attended, around_attention, attend_eagerly
from closelook.lrp_core.records.capabilities import ATTENTION
from closelook.lrp_core.records.explained import whichever
from closelook.lrp_core.records.types import Batch, Request, UnsupportedMethod
from closelook.lrp_core.records.variants import tiled
from closelook.lrp_core.rules import ATTNLRP, LRP, PLAIN, Composite
from closelook.lrp_core.verification.record import Gap
from closelook.lrp_core.verification.rounding import MARGIN, Rounded, distance, largest, unit_of
from closelook.lrp_core.views.view import ModelView

#: The relative step on an embedding, by dtype: small enough for curvature and large enough for rounding.
STEPS = {torch.float64: 2.0**-13, torch.float32: 2.0**-7}
_SLOTS = {"normalization": "norms", "activation": "activations", "bilinear": "products"}


def check_held(view: ModelView, composite: Composite) -> None:
    """Raise UnsupportedMethod if the factors that a composite holds constant cannot be held in this model."""
    if ATTENTION not in view.family.capabilities and composite != Composite(composite.name):
        raise UnsupportedMethod(f"{view.family.title} have attention that is not described")
    if view.routed and (composite.activation.constant or not _passes(composite)):
        raise UnsupportedMethod("experts run the tokens of all rows together")


def _passes(composite: Composite) -> bool:
    """True if products of a gate and a signal have their true gradient."""
    return composite.bilinear.serves_gate and composite.bilinear.share == 1


@dataclass(frozen=True)
class _Rows:
    """Functions of tensors whose R rows are variants of a sample, [R, ...], or [R * T, ...] if tokens are flattened."""

    number: int

    def first(self, x: Tensor) -> Tensor:
        """The first row repeated in place of every row."""
        by_row = x.unflatten(0, (self.number, -1))
        return by_row[:1].expand_as(by_row).flatten(0, 1)

    def sharing(self, x: Tensor, share: float) -> Tensor:
        """Rows whose difference from the first row is multiplied by `share`."""
        if share == 1:
            return x
        first = self.first(x)
        return first + share * (x - first)

    def as_ratio(self, x: Tensor, y: Tensor) -> Tensor:
        """Replace y, an elementwise function of x, by x times the ratio y / x of the first row."""
        first = self.first(x)
        return x * torch.where(first == 0, 0.0, self.first(y) / first)

    def routed_alike(self, routing: tuple[Tensor, Tensor, Tensor], constant: bool) -> tuple[Tensor, Tensor, Tensor]:
        """Replace the experts that a router has `chosen` by those of the first row, weighted by each row's own logits.

        Weights [R * T, k] are the experts' probabilities, divided by their sum if every token's sum to 1. With
        `constant` they are those of the first row, too.
        """
        logits, weights, chosen = routing
        chosen = self.first(chosen)
        if constant:
            return logits, self.first(weights), chosen
        probabilities = logits.softmax(-1).gather(-1, chosen)
        if torch.allclose(weights.sum(-1), torch.ones_like(weights[:, 0])):
            probabilities = probabilities / probabilities.sum(-1, keepdim=True)
        return logits, probabilities.to(weights.dtype), chosen

    def as_linear(self, x: Tensor, y: Tensor, norm: NormView) -> Tensor:
        """Replace y, the norm of x, by that norm with the standard deviation of the first row."""
        _, bias = norm.parameters()
        bias = torch.zeros_like(y[..., :1]) if bias is None else bias
        deviation = _deviation(x, norm)
        return (y - bias) * (deviation / self.first(deviation)) + bias


@contextmanager
def held(view: ModelView, composite: Composite, number: int) -> Iterator[None]:
    """Inside, factors that `composite` holds constant are those of the first row, in batches of `number` rows."""
    rows = _Rows(number)
    gated, holds_gates = view.family.gate is not None, not composite.bilinear.serves_gate
    hooks: list[tuple[nn.Module, Any]] = []
    by_ratio: list[nn.Module | None] = [view.head_activation, view.logit_cap]
    for block in view.blocks:
        if block.experts is not None:
            constant = composite.name != PLAIN.name  # rules hold routing constant
            hooks.append((block.experts.router, lambda _, args, y, constant=constant: rows.routed_alike(y, constant)))
        if block.down is None:
            continue
        if gated and holds_gates:
            hooks.append((block.activation, lambda _, args, y: rows.first(y)))
        else:
            by_ratio.append(block.activation)
    for module in by_ratio:
        if module is not None and (composite.activation.constant or isinstance(module, nn.ReLU)):
            hooks.append((module, lambda _, args, y: rows.as_ratio(args[0], y)))
    if composite.normalization.constant:
        for norm in view.norms():
            hooks.append((norm.module, lambda _, args, y, norm=norm: rows.as_linear(args[0], y, norm)))
    with ExitStack() as undo:
        undo.enter_context(unrounded(view.dtype))
        for module, hook in hooks:
            undo.enter_context(module.register_forward_hook(hook))
        if gated and composite.bilinear.share != 1:
            for block in view.blocks:
                shared = partial(_share_of_product, rows=rows, share=composite.bilinear.share)
                undo.enter_context(block.down.register_forward_pre_hook(shared))
        if ATTENTION in view.family.capabilities and (not _passes(composite) or view.caps_scores):
            attend = partial(_attend, rows=rows, composite=composite)
            around = {attended.attention: attend for attended in view.attentions}
            undo.enter_context(around_attention(view, around, stock="eager"))
        yield


def _deviation(x: Tensor, norm: NormView) -> Tensor:
    """The number [..., 1] by which a norm divides its input x [..., D]."""
    centred = x - x.mean(-1, keepdim=True) if norm.kind == "layer" else x
    return (centred.square().mean(-1, keepdim=True) + norm.eps).sqrt()


def _share_of_product(_: nn.Module, args: tuple[Any, ...], rows: _Rows, share: float) -> tuple[Any, ...]:
    """Pre-hook of a down projection: the product of gate and signal differs from the first row's by `share` only."""
    product, *others = args
    return rows.sharing(product, share), *others


def _attend(
    _: Any,
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    *,
    rows: _Rows,
    composite: Composite,
    **options: Any,
) -> Attended:
    """Eager attention with the composite's constant factors; stands in for the kernel.

    From queries [R, H, T, K], keys and values [R, G, T, K] to context [R, T, H, K] and weights [R, H, T, T].
    """
    query, key = (rows.sharing(x, composite.bilinear.query_key) for x in (query, key))
    value = rows.sharing(value, composite.bilinear.share)
    if composite.activation.constant:
        options["cap"] = rows.as_ratio
    return attend_eagerly(query, key, value, mask, softmax=_softmax, **options)


def _softmax(scores: Tensor, mask: Tensor | None) -> Tensor:
    """The softmax of scores [R, H, T, T] plus an additive mask."""
    return torch.softmax(scores if mask is None else scores + mask, -1)


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

    def changed(self, change: Callable[[Tensor], Tensor]) -> AbstractContextManager[Any]:
        """Inside, forwards apply `change` to the input of the block; nothing happens for the token embeddings."""

        def hook(_: nn.Module, args: tuple[Any, ...], options: Mapping[str, Any]) -> Any:
            if args:
                return (change(args[0]), *args[1:]), dict(options)
            return args, {**options, "hidden_states": change(options["hidden_states"])}

        return nullcontext() if self.block is None else self.block.register_forward_pre_hook(hook, with_kwargs=True)

    def explained(self, view: ModelView, batch: Batch, change: Callable[[Tensor], Tensor]) -> Tensor:
        """The explained number [B] after `change` was applied to the states [B, T, D] at the entrance."""
        tokens = view.tokens(batch)
        with self.changed(change):
            hidden = view.hidden(batch, change(tokens) if self.block is None else tokens)
        return whichever(batch.foil_ids is not None).of(view.logits(hidden, batch))


EMBEDDINGS = Entrance()


def relevance_at(view: ModelView, batch: Batch, composite: Composite, entrance: Entrance) -> Tensor:
    """Relevance [T] of the one sample of a batch under the composite: gradient times state at the entrance."""
    read: list[Tensor] = []

    def note(gradient: Tensor, states: Tensor) -> None:
        read[:] = [(gradient * states).sum(-1)[0]]

    explanation = whichever(batch.foil_ids is not None).name
    request = Request("gradient_x_input", explanation, "partial")
    with entrance.changed(lambda states: watched(states, note)):
        result = explain_many(view, batch, [request], composite=composite)[request]
    if entrance.block is not None:
        return read[0]
    parts = (result.tokens, result.decoder_tokens)
    return torch.cat([part[0] for part in parts if part is not None])


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
