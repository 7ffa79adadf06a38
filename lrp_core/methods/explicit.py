"""AttnLRP by explicit layer-wise propagation: relevance, not gradients, goes backward (AttnLRP section 3).

The slow baseline of Close Look's table 8 and the oracle of the modified gradients. Inside `relevance_flow` every
autograd edge carries relevance: products and sums are replaced where the model calls them, norms and activations by
forward hooks, attention around its kernel. Reshaping, slicing and the like move relevance as they move gradients.

Half-precision models lend their weights and are worked out in float32. Shares of relevance are far larger than their
sum: rounded to bfloat16 at every step they are up to 15 % off. In float16 epsilon would be zero.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial, reduce
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from lrp_core.device.expert_rows import ExpertRows
from lrp_core.device.precision import unrounded
from lrp_core.methods import EPSILON
from lrp_core.parts.norms import NormView
from lrp_core.readers.attention import Kernel, around_attention
from lrp_core.records.explained import explained_by
from lrp_core.records.types import Batch, Relevance, Request
from lrp_core.rules.activation import soft_cap
from lrp_core.rules.heads import HeadRelevance
from lrp_core.rules.normalization import inverse_rms
from lrp_core.rules.propagation import (
    add_rule,
    identity_rule,
    linear_of_experts_rule,
    linear_rule,
    matmul_rule,
    norm_rule,
    product_rule,
    routing_rule,
    sigmoid_rule,
    softmax_rule,
    stabilised,
    wide,
)
from lrp_core.views.view import ModelView


def explain_many(
    view: ModelView, batch: Batch, requests: Sequence[Request], *, heads: bool = False, epsilon: float = EPSILON
) -> dict[Request, Relevance]:
    """Explicit AttnLRP: a forward pass, and a propagation for each explanation; `epsilon` stabilises every denominator.

    Weights stay in the graph and attention is T x T per head: a baseline, not a tool. Raises UserError for a
    contrastive request without foils.
    """
    batch = batch.to(view.device)
    collected = HeadRelevance(view, batch, ()) if heads else None
    results: dict[Request, Relevance] = {}
    with torch.inference_mode(False), torch.enable_grad():
        token, full = (wide(part.detach()) for part in view.embed(batch))
        leaf = token.requires_grad_()
        with relevance_flow(view, epsilon, collected):
            state = view.prediction(view.hidden(batch, leaf), batch)  # [B, D]
        with _cap_as_factor(view):
            logits = view.unembed(final := state.detach().requires_grad_(), batch)
        for explanation in dict.fromkeys(request.explanation for request in requests):
            explained = explained_by(explanation).of(logits)
            (gradient,) = torch.autograd.grad(explained.sum(), final, retain_graph=True)
            if collected is not None:
                collected.begin({"relevance": lambda relevance, _: relevance})
            (relevance,) = torch.autograd.grad(state, leaf, final.detach() * gradient, retain_graph=True)  # [B, T, D]
            parts = {"full": relevance, "partial": relevance * token.detach() / stabilised(full, epsilon)}
            for request in requests:
                if request.explanation == explanation:
                    results[request] = Relevance(
                        tokens=parts[request.embedding].sum(-1).masked_fill(batch.attention_mask == 0, 0),
                        explained=explained.detach(),
                        logit_target=logits[:, 0].detach(),
                        logit_foil=None if batch.foil_ids is None else logits[:, 1].detach(),
                        heads=None if collected is None else collected.pooled("relevance"),
                    )
    return {request: results[request] for request in requests}


@contextmanager
def relevance_flow(view: ModelView, epsilon: float, heads: HeadRelevance | None = None) -> Iterator[None]:
    """Inside, the model builds a graph whose backward pass takes relevance of its output to relevance of its input."""
    activations = [block.activation for block in view.blocks if block.activation is not None]
    if view.head_activation is not None:
        activations.append(view.head_activation)
    with ExitStack() as undo:
        for norm in view.norms():
            undo.callback(norm.module.register_forward_hook(_norm_hook(norm, epsilon)).remove)
        activations += [block.experts.all.act_fn for block in view.blocks if block.experts is not None]
        for module in activations:
            hook = module.register_forward_hook(lambda _, args, y: identity_rule(args[0], y.detach()))
            undo.callback(hook.remove)
        for experts in (block.experts for block in view.blocks if block.experts is not None):
            hook = experts.router.register_forward_hook(partial(_routed, epsilon=epsilon))
            undo.callback(hook.remove)
            undo.callback(experts.all.register_forward_hook(partial(_mixed, epsilon=epsilon)).remove)
        around = {
            block.attention: partial(_attend, epsilon=epsilon, layer=layer, heads=heads)
            for layer, block in enumerate(view.blocks)
        }
        undo.enter_context(around_attention(view, around, stock="eager"))
        undo.enter_context(_Propagating(epsilon))
        yield


@contextmanager
def _cap_as_factor(view: ModelView) -> Iterator[None]:
    """Inside, the gradient of a cap on logits is what it multiplies each logit by: its relevance passes as it is."""
    cap = view.logit_cap
    if cap is None:
        yield
        return
    factor = soft_cap(cap.cap).ratio
    handle = cap.register_forward_hook(lambda _, args, y: args[0] * factor(args[0].detach()))
    try:
        yield
    finally:
        handle.remove()


class _Propagating(TorchFunctionMode):
    """Replaces the sums and products that modelling code writes inline; half-precision weights become float32."""

    def __init__(self, epsilon: float) -> None:
        super().__init__()
        self.rules: dict[Callable[..., Any], Callable[..., Tensor]] = {
            nn.functional.linear: partial(linear_rule, epsilon=epsilon),
            torch.addmm: lambda bias, x, weight: linear_rule(x, weight.T, bias, epsilon=epsilon),
            **dict.fromkeys((torch.add, torch.Tensor.add, torch.Tensor.__radd__), partial(add_rule, epsilon=epsilon)),
            **dict.fromkeys((torch.mul, torch.Tensor.mul, torch.Tensor.__rmul__), product_rule),
            **dict.fromkeys((torch.sigmoid, torch.Tensor.sigmoid), sigmoid_rule),
            **dict.fromkeys((torch.neg, torch.Tensor.neg), lambda x: identity_rule(x, -x.detach())),
        }

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not any(isinstance(arg, Tensor) and arg.requires_grad for arg in args):
            return func(*args, **kwargs)
        if func in self.rules:
            return self.rules[func](*args, **kwargs)
        return func(*map(_wide_number, args), **{name: _wide_number(value) for name, value in kwargs.items()})


def _wide_number(x: Any) -> Any:
    return wide(x) if isinstance(x, Tensor) and x.is_floating_point() else x


def _norm_hook(norm: NormView, epsilon: float) -> Callable[..., Tensor]:
    weight, _ = norm.parameters()

    def hook(_: nn.Module, args: tuple[Any, ...], y: Tensor) -> Tensor:
        x = args[0]
        with torch.no_grad():
            centred = x - x.mean(-1, keepdim=True) if norm.kind == "layer" else x
            rstd = inverse_rms(centred, norm.eps).to(x.dtype)
            y = centred * rstd * weight if norm.kind == "rms" else y.detach()
        return norm_rule(x, y, weight * rstd, norm.kind == "layer", epsilon)

    return hook


def _routed(module: nn.Module, args: tuple[Any, ...], y: tuple[Tensor, ...], *, epsilon: float) -> tuple[Tensor, ...]:
    """Logits [N, E], weights [N, k] and experts [N, k] of states [N, D]."""
    parameters = {name: wide(parameter) for name, parameter in module.named_parameters()}

    def weights(states: Tensor) -> Tensor:
        with unrounded(states.dtype):  # in the backward pass, too
            return torch.func.functional_call(module, parameters, (states,))[1].to(states.dtype)

    logits, chances, chosen = y
    return logits, routing_rule(args[0], chances, weights, epsilon), chosen


def _mixed(module: Any, args: tuple[Tensor, Tensor, Tensor], _: Tensor, *, epsilon: float) -> Tensor:
    """The output [N, D] of a token's experts, the one with the lowest number first: sums and products that have rules.

    Sums are over the experts that the token is sent to: epsilon would take its share of further ones, and which experts
    are busy depends on the tokens beside it.
    """
    states, chosen, weights = args
    rows = ExpertRows.of(chosen, len(module.down_proj))
    inputs = linear_of_experts_rule(states[rows.tokens], module.gate_up_proj, rows, epsilon=epsilon)
    gate, up = inputs.chunk(2, dim=-1)
    outputs = linear_of_experts_rule(module.act_fn(gate) * up, module.down_proj, rows, epsilon=epsilon)
    weighted = outputs * weights[rows.tokens, rows.ranks, None]  # [S, D]
    by_expert = rows.row_of.sort(1).values  # [N, k], of each token the expert with the lowest number first
    return reduce(operator.add, weighted[by_expert].unbind(1))


def _attend(
    _: Kernel,
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    *,
    scaling: float | None,
    softcap: float | None = None,
    epsilon: float,
    layer: int,
    heads: HeadRelevance | None,
    **__: Any,
) -> tuple[Tensor, Tensor]:
    """Queries [B, H, T, K], keys and values [B, G, T, K] to context [B, T, H, K], by propositions 3.1 and 3.3."""
    groups = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    scores = matmul_rule(query, key.transpose(-1, -2), epsilon)  # [B, H, T, T]
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    scores = identity_rule(scores, scores.detach() * scale)
    if softcap is not None:
        scores = identity_rule(scores, softcap * torch.tanh(scores.detach() / softcap))
    weights = softmax_rule(scores, mask)
    context = matmul_rule(weights, value, epsilon).transpose(1, 2)  # [B, T, H, K]
    if heads is not None:
        context = heads.after_attention(layer, context)
    return context, weights
