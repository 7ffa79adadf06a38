"""A forward pass whose numerical derivative is the relevance under a composite's rules, to check the rules with.

Rules hold factors constant: the standard deviation of norms, the ratio g(z)/z of activations, gates, a share of
products. So a batch of variants of one sample runs with these factors taken from its first row, the unchanged sample.
The other rows then change just as the rules let relevance pass. No gradient and no code of the rules is used.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from lrp_core.device.precision import unrounded
from lrp_core.parts.norms import NormView
from lrp_core.readers.attention import Attended, around_attention
from lrp_core.records.capabilities import ATTENTION, RULES
from lrp_core.records.types import UnsupportedMethod
from lrp_core.rules import Composite
from lrp_core.views.view import ModelView


def check_held(view: ModelView, composite: Composite) -> None:
    """Raise UnsupportedMethod if the factors that a composite holds constant cannot be held in this model."""
    if RULES not in view.family.capabilities and composite != Composite(composite.name):
        raise UnsupportedMethod(f"{view.family.title} have no rules")
    if view.routed and (composite.activation.constant or composite.bilinear.share != 1 or not _passes(composite)):
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
    for block in view.blocks:
        if block.down is None:
            continue
        if gated and holds_gates:
            hooks.append((block.activation, lambda _, args, y: rows.first(y)))
        elif composite.activation.constant:
            hooks.append((block.activation, lambda _, args, y: rows.as_ratio(args[0], y)))
    if composite.activation.constant:
        for module in (view.head_activation, view.logit_cap):
            if module is not None:
                hooks.append((module, lambda _, args, y: rows.as_ratio(args[0], y)))
    if composite.normalization.constant:
        for norm in view.norms():
            hooks.append((norm.module, lambda _, args, y, norm=norm: rows.as_linear(args[0], y, norm)))
    with ExitStack() as undo:
        undo.enter_context(unrounded(view.dtype))
        for module, hook in hooks:
            undo.callback(module.register_forward_hook(hook).remove)
        if gated and composite.bilinear.share != 1:
            for block in view.blocks:
                shared = partial(_share_of_product, rows=rows, share=composite.bilinear.share)
                undo.callback(block.down.register_forward_pre_hook(shared).remove)
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
    scaling: float | None = None,
    softcap: float | None = None,
    position_bias: Tensor | None = None,
    **__: Any,
) -> Attended:
    """Eager attention with the composite's constant factors; stands in for the kernel.

    From queries [R, H, T, K], keys and values [R, G, T, K] to context [R, T, H, K] and weights [R, H, T, T].
    """
    groups = query.shape[1] // key.shape[1]
    query, key = (rows.sharing(x, composite.bilinear.query_key) for x in (query, key))
    value = rows.sharing(value, composite.bilinear.share)
    key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    scores = query @ key.transpose(-1, -2) * (query.shape[-1] ** -0.5 if scaling is None else scaling)
    if softcap is not None:
        capped = softcap * torch.tanh(scores / softcap)
        scores = rows.as_ratio(scores, capped) if composite.activation.constant else capped
    for added in (position_bias, mask):
        scores = scores if added is None else scores + added
    weights = torch.softmax(scores, -1)
    return (weights @ value).transpose(1, 2), weights
