"""Attention in one piece: `scaled_dot_product_attention`.

With the true gradient of the softmax, the uniform rule only scales the gradients of queries, keys, values and mask, so
that any kernel computes the rest (AttnLRP propositions 3.1 and 3.3). Composites with a constant softmax give queries,
keys and mask none. For other rules of the softmax attention is computed in steps, which have rules of their own.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from closelook.lrp_core.operations.nodes import scaled, with_value
from closelook.lrp_core.operations.norms import arguments
from closelook.lrp_core.operations.products import holds_weights
from closelook.lrp_core.operations.scope import Scope
from closelook.lrp_core.operations.softmax import backward_of
from closelook.lrp_core.operations.table import opened, rule
from closelook.lrp_core.rules.records import Composite

_NAMES = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa")


@rule("scaled_dot_product_attention", carries=_NAMES[:4])
def attention(mode: Scope, func: Any, args: Any, kwargs: Any) -> Tensor:
    """Attention of queries [..., T, K], keys and values [..., S, K] and a mask."""
    query, key, value, mask, dropout, causal, scale, grouped = arguments(args, kwargs, _NAMES)
    if dropout:
        raise mode.refused("attention with dropout drops relevance: put the model into evaluation by model.eval()")
    mode.refuse_constant(func, query, key, value)
    plan = mode.plan
    options = {"is_causal": bool(causal), "scale": scale, "enable_gqa": bool(grouped)}
    steps = mode.stabilises or any(plan.each(backward_of))
    if steps and not all(plan.each(holds_weights)):
        with torch.no_grad():
            stock = func(query, key, value, mask, **options)
        with mode:
            result = _in_steps(query, key, value, mask, **options)
        return with_value(result, stock)
    if mask is not None and mask.requires_grad:
        mask = scaled(mask, plan.each(_of_mask), plan)
    of_weights = plan.each(_of_weights)
    query, key, value = (
        scaled(query, of_weights, plan),
        scaled(key, of_weights, plan),
        scaled(value, plan.each(_of_values), plan),
    )
    result = scaled(func(query, key, value, mask, **options), plan.each(_of_result), plan)
    if mode.rules_layers:
        mode.layers.attend(result, query.grad_fn, key.grad_fn, value.grad_fn)
    return result


# Queries and keys get the factor of the result alone, if they get any: one operation in the backward pass for both.


def _of_result(composite: Composite) -> float:
    """The factor of the result's gradient: that of queries and keys, whose product makes the weights of values."""
    return composite.bilinear.share if holds_weights(composite) else composite.bilinear.query_key


def _of_weights(composite: Composite) -> float:
    """The rest of the factor of queries and keys."""
    return 0.0 if holds_weights(composite) else 1.0


def _of_values(composite: Composite) -> float:
    """The rest of the factor of values, which get the share of one of two factors."""
    return composite.bilinear.share / _of_result(composite)


def _of_mask(composite: Composite) -> float:
    """The rest of the factor of a mask that carries relevance, which is added to scores."""
    return 0.0 if holds_weights(composite) else _of_values(composite)


def _in_steps(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    is_causal: bool,
    scale: float | None,
    enable_gqa: bool,
) -> Tensor:
    """Attention as products and a softmax."""
    if enable_gqa:
        groups = query.shape[-3] // key.shape[-3]
        key, value = key.repeat_interleave(groups, -3), value.repeat_interleave(groups, -3)
    scores = query @ key.transpose(-1, -2) * (query.shape[-1] ** -0.5 if scale is None else scale)
    if is_causal:
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
    if mask is not None:
        least = torch.finfo(scores.dtype).min  # not -inf, so that rows without a visible key are no NaN
        scores = scores.masked_fill(~mask, least) if mask.dtype == torch.bool else scores + mask
    return torch.softmax(scores, -1) @ value


@rule("multi_head_attention_forward", "normalize")
def steps(mode: Scope, func: Any, args: Any, kwargs: Any) -> Any:
    """A function that hides others: these are looked up in the table."""
    with mode:
        return opened(func)(*args, **kwargs)


@rule("glu", carries=("input",))
def gated(mode: Scope, func: Any, args: Any, kwargs: Any) -> Tensor:
    """The product of one half of a tensor and the sigmoid of the other."""
    x, axis = arguments(args, kwargs, ("input", "dim"))
    with torch.no_grad():
        stock = func(*args, **kwargs)
    with mode:
        signal, gate = x.chunk(2, -1 if axis is None else axis)
        steps = signal * torch.sigmoid(gate)
    return with_value(steps, stock)
