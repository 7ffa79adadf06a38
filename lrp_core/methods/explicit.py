"""AttnLRP by explicit layer-wise propagation: relevance, not gradients, goes backward (AttnLRP section 3).

This is the slow baseline of Close Look's table 8, and tests compare the modified gradients with it. Inside
`relevance_flow` autograd propagates relevance: sums and products are replaced where the model's code calls them, norms
and activations by forward hooks, attention by a function around its kernel. Reshaping and slicing move relevance as
they move gradients.

The weights of half-precision models are converted to float32 for the computation. Relevances of single tokens are far
larger than their sum: rounded to bfloat16 at every step they would be up to 15 % off. In float16 epsilon would be zero.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial, reduce
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from closelook.lrp_core.device.expert_rows import ExpertRows
from closelook.lrp_core.device.precision import unrounded, wide
from closelook.lrp_core.methods import EPSILON
from closelook.lrp_core.parts.layers import NormView
from closelook.lrp_core.readers.attention import Kernel, around_attention
from closelook.lrp_core.records.explained import explained_by, relevance_of
from closelook.lrp_core.records.types import Batch, Relevance, Request, Requests
from closelook.lrp_core.rules.activation import soft_cap
from closelook.lrp_core.rules.heads import HeadRelevance
from closelook.lrp_core.rules.normalization import inverse_rms
from closelook.lrp_core.rules.propagation import (
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
)
from closelook.lrp_core.views.view import ModelView


def explain_many(
    view: ModelView, batch: Batch, requests: Requests, *, heads: bool = False, epsilon: float = EPSILON
) -> dict[Request, Relevance]:
    """Explicit AttnLRP: a forward pass, and a propagation for each explanation; `epsilon` stabilises every denominator.

    It needs much memory, since the graph keeps weights and T x T attention maps of every head. With `heads` results
    also have relevance of heads. Raises UserError for a contrastive request without foils.
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
            pooled = None if collected is None else collected.pooled("relevance")
            parts = {"full": relevance, "partial": relevance * token.detach() / stabilised(full, epsilon)}
            for request in requests:
                if request.explanation == explanation:
                    tokens = parts[request.embedding].sum(-1).masked_fill(batch.attention_mask == 0, 0)
                    results[request] = relevance_of(tokens, logits, explained, heads=pooled)
    return {request: results[request] for request in requests}


@contextmanager
def relevance_flow(view: ModelView, epsilon: float, heads: HeadRelevance | None = None) -> Iterator[None]:
    """Inside, the model builds a graph whose backward pass turns relevance of its output into relevance of its input.

    `heads` reads the relevance of heads as it passes.
    """
    activations = [block.activation for block in view.blocks if block.activation is not None]
    activations += [block.experts.all.act_fn for block in view.blocks if block.experts is not None]
    if view.head_activation is not None:
        activations.append(view.head_activation)
    with ExitStack() as undo:
        for norm in view.norms():
            undo.enter_context(norm.module.register_forward_hook(_norm_hook(norm, epsilon)))
        for module in activations:
            undo.enter_context(module.register_forward_hook(lambda _, args, y: identity_rule(args[0], y.detach())))
        around = {}
        for layer, block in enumerate(view.blocks):
            around[block.attention] = partial(_attend, epsilon=epsilon, layer=layer, heads=heads)
            if block.experts is not None:
                undo.enter_context(block.experts.router.register_forward_hook(partial(_routed, epsilon=epsilon)))
                undo.enter_context(block.experts.all.register_forward_hook(partial(_mixed, epsilon=epsilon)))
        undo.enter_context(around_attention(view, around, stock="eager"))
        undo.enter_context(_Propagating(epsilon))
        yield


def _cap_as_factor(view: ModelView) -> AbstractContextManager[Any]:
    """Inside, the gradient of the soft cap on logits is cap(z) / z: with it, relevance passes the cap unchanged."""
    cap = view.logit_cap
    if cap is None:
        return nullcontext()
    factor = soft_cap(cap.cap).ratio
    return cap.register_forward_hook(lambda _, args, y: args[0] * factor(args[0].detach()))


class _Propagating(TorchFunctionMode):
    """Replaces functions that modelling code calls inline by their propagation rules, if an argument needs a gradient.

    Functions without a rule run as they are, with half-precision arguments converted to float32.
    """

    def __init__(self, epsilon: float) -> None:
        super().__init__()
        linear = partial(linear_rule, epsilon=epsilon)
        self.rules: dict[Callable[..., Any], Callable[..., Tensor]] = {nn.functional.linear: linear}
        self.rules[torch.addmm] = lambda bias, x, weight: linear(x, weight.T, bias)
        sum_rule = partial(add_rule, epsilon=epsilon)
        self.rules |= dict.fromkeys((torch.add, Tensor.add, Tensor.__radd__), sum_rule)
        self.rules |= dict.fromkeys((torch.mul, Tensor.mul, Tensor.__rmul__), product_rule)
        self.rules |= dict.fromkeys((torch.sigmoid, Tensor.sigmoid), sigmoid_rule)
        self.rules |= dict.fromkeys((torch.neg, Tensor.neg), _negation_rule)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not any(isinstance(arg, Tensor) and arg.requires_grad for arg in args):
            return func(*args, **kwargs)
        if func in self.rules:
            return self.rules[func](*args, **kwargs)
        return func(*map(_wide_number, args), **{name: _wide_number(value) for name, value in kwargs.items()})


def _negation_rule(x: Tensor) -> Tensor:
    return identity_rule(x, -x.detach())


def _wide_number(x: Any) -> Any:
    """A floating point tensor in float32 at least; anything else unchanged."""
    return wide(x) if isinstance(x, Tensor) and x.is_floating_point() else x


def _norm_hook(norm: NormView, epsilon: float) -> Callable[..., Tensor]:
    """A forward hook that gives a norm's output the propagation rule of norms."""
    weight, _ = norm.parameters()

    def hook(_: nn.Module, args: tuple[Any, ...], y: Tensor) -> Tensor:
        x = args[0]
        with torch.no_grad():
            centred = x - x.mean(-1, keepdim=True) if norm.kind == "layer" else x
            rstd = inverse_rms(centred, norm.eps).to(x.dtype)
            y = centred * rstd * weight if norm.kind == "rms" else y.detach()
        return norm_rule(x, y, weight * rstd, norm.kind == "layer", epsilon)

    return hook


def _routed(module: nn.Module, args: tuple[Any, ...], y: tuple[Tensor, ...], epsilon: float) -> tuple[Tensor, ...]:
    """Forward hook of a router: gives the weights of experts the propagation rule of routing.

    The router puts out logits [N, E], weights [N, k] and experts [N, k] of states [N, D].
    """
    parameters = {name: wide(parameter) for name, parameter in module.named_parameters()}

    def weights(states: Tensor) -> Tensor:
        with unrounded(states.dtype):  # again, since the rule calls this in the backward pass
            return torch.func.functional_call(module, parameters, (states,))[1].to(states.dtype)

    logits, chances, chosen = y
    return logits, routing_rule(args[0], chances, weights, epsilon), chosen


def _mixed(module: Any, args: tuple[Tensor, Tensor, Tensor], _: Tensor, epsilon: float) -> Tensor:
    """Forward hook of experts: computes their output [N, D] again, by sums and products that have propagation rules.

    For each token the outputs of its own experts are added, in the order of their numbers. Adding zeros for other
    experts would change relevance, since each sum's epsilon takes a share, and make it depend on other tokens.
    """
    states, chosen, weights = args
    rows = ExpertRows.of(chosen, len(module.down_proj))
    inputs = linear_of_experts_rule(states[rows.tokens], module.gate_up_proj, rows, epsilon=epsilon)
    gate, up = inputs.chunk(2, dim=-1)
    outputs = linear_of_experts_rule(module.act_fn(gate) * up, module.down_proj, rows, epsilon=epsilon)
    weighted = outputs * weights[rows.tokens, rows.ranks, None]  # [S, D]
    by_expert = rows.row_of.sort(1).values  # [N, k], the rows of each token, sorted by the expert's number
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
    """Eager attention with the propagation rules of propositions 3.1 and 3.3; stands in for the kernel.

    From queries [B, H, T, K], keys and values [B, G, T, K] to context [B, T, H, K] and weights [B, H, T, T].
    """
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
