"""Puts rules on one model instance inside a `with`; leaving it undoes everything.

Modules compute their outputs by their own forward, together with any hooks of others. A forward hook then gives the
output the gradient of the rule.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from accelerate.utils import has_offloaded_params
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from closelook.lrp_core.device.precision import unrounded
from closelook.lrp_core.parts.block import ExpertsView
from closelook.lrp_core.parts.layers import LinearLayer, NormView, ReadRows
from closelook.lrp_core.readers.attention import Attended, Kernel, around_attention
from closelook.lrp_core.records.capabilities import RULES
from closelook.lrp_core.records.types import UnsupportedMethod
from closelook.lrp_core.rules import Composite
from closelook.lrp_core.rules.activation import Activation, activate, activation, soft_cap
from closelook.lrp_core.rules.bilinear import as_gate, attend_with, share
from closelook.lrp_core.rules.linear import project, values_only
from closelook.lrp_core.rules.normalization import normalise
from closelook.lrp_core.rules.reading import Reader
from closelook.lrp_core.rules.softmax import attend_openly
from closelook.lrp_core.rules.switch import Switch
from closelook.lrp_core.views.generic import GenericView
from closelook.lrp_core.views.view import ModelView

Hook = Callable[[nn.Module, tuple[Any, ...], Any], Any]  # routers put out several tensors


@contextmanager
def rules_on(
    view: ModelView,
    composites: Sequence[Composite],
    readers: Sequence[Reader] = (),
    *,
    checkpointing: bool = False,
) -> Iterator[Switch]:
    """Inside, gradients of the model follow the composite `switch.current`, one of `composites`, in each backward pass.

    Yields the switch: set `switch.current` before a backward pass. `readers` see values and gradients on their way.
    With `checkpointing` only the inputs of blocks are kept, and each block runs again when the gradient reaches it.
    """
    switch = Switch(tuple(composites), composites[0])
    with ExitStack() as undo:
        undo.enter_context(unrounded(view.dtype))
        if RULES in view.family.capabilities and not isinstance(view, GenericView):
            for module, hook in _hooks(view, switch):
                undo.enter_context(module.register_forward_hook(hook))
        for block in view.blocks:
            if block.experts is not None:
                # experts are gated MLPs: scale the gradient at their input
                scale_input = partial(_shared_in, switch=switch)
                undo.enter_context(block.experts.all.register_forward_pre_hook(scale_input))
        for reader in readers:  # after the rules, so that their hooks see outputs to which rules were applied
            undo.enter_context(reader.tapping(switch))
        ruled = any(composite.softmax.backward is not None for composite in composites)
        openly = ruled or view.caps_scores  # rules for the softmax or a soft cap of scores need eager attention
        attend = partial(_attend, switch=switch, readers=readers, openly=openly)
        around = {attended.attention: partial(attend, layer=layer) for layer, attended in enumerate(view.attentions)}
        undo.enter_context(around_attention(view, around, stock="eager" if openly else None))
        if checkpointing:  # a model that no family describes has no stacks, so nothing happens for it
            for path in view.stacks:
                undo.enter_context(_checkpointed_blocks(view, path))
        yield switch


def _hooks(view: ModelView, switch: Switch) -> Iterator[tuple[nn.Module, Hook]]:
    """The modules that have a rule, each with the forward hook that applies it."""
    for norm in view.norms():
        yield norm.module, _norm_hook(norm, switch)
    kind = activation(view.activation_name)
    gated = view.family.gate is not None
    if view.head_activation is not None:
        of_head = activation(view.head_activation_name)
        yield view.head_activation, _activation_hook(of_head, switch)
    if view.logit_cap is not None:
        yield view.logit_cap, _activation_hook(soft_cap(view.logit_cap.cap), switch)
    for layer in _ruled_layers(view, switch.planned):
        yield layer.module, partial(_project, layer=layer, switch=switch)
    if any(composite.linear.linear.backward is not None for composite in switch.planned):
        yield view.readout, partial(_read_out, switch=switch)
    of_values = _reads_only_values(switch) and view.family.qkv == "joined"
    for block in view.blocks:
        if of_values and not has_offloaded_params(block.value):  # keeping offloaded weights costs more than it saves
            weight = block.value_weights()[0].flatten(0, 1)
            yield block.value, partial(_values_only, weight=weight)
        if block.experts is not None:
            yield from _hooks_of_experts(block.experts, kind, switch)
        if block.down is None:
            continue
        yield block.activation, _activation_hook(kind, switch, gating=gated)
        if gated:
            yield block.down, lambda _, args, y: share(y, switch)  # equal to sharing at its input, which is wider


def _activation_hook(kind: Activation, switch: Switch, gating: bool = False) -> Hook:
    """A forward hook that gives an activation's output the gradient of its rule; see `activate`."""
    return lambda _, args, y: activate(args[0], y, kind, gating, switch)


def _hooks_of_experts(experts: ExpertsView, kind: Activation, switch: Switch) -> Iterator[tuple[nn.Module, Hook]]:
    """Modules of a mixture of experts with their hooks.

    The router's weights, and the sigmoid before a shared expert, are gates of the experts' outputs. Their softmax,
    renormalisation and sigmoid (a softmax over two) have their true gradients (AttnLRP proposition 3.1). Experts are
    gated MLPs themselves: `_shared_in` scales the gradient of that product at their input.
    """
    yield experts.router, lambda _, args, y: (y[0], as_gate(y[1], switch), y[2])
    yield experts.all.act_fn, _activation_hook(kind, switch, gating=True)
    yield experts.all, lambda _, args, y: share(y, switch)
    if experts.shared is not None and experts.shared_gate is not None:
        yield experts.shared, lambda _, args, y: share(y, switch)
        yield experts.shared_gate, lambda _, args, y: share(as_gate(y, switch), switch)


def _shared_in(_: nn.Module, args: tuple[Any, ...], switch: Switch) -> tuple[Any, ...]:
    """Forward pre-hook of experts: scales the gradient at their input by the rule of their gated product."""
    states, *routing = args
    return share(states, switch), *routing


def _ruled_layers(view: ModelView, composites: Sequence[Composite]) -> list[LinearLayer]:
    """The linear layers for which some composite has a rule.

    Raises UnsupportedMethod for a rule of `linear` on a model with experts.
    """
    groups = {group for composite in composites for group in composite.linear.ruled}
    if "linear" in groups and view.routed:
        raise UnsupportedMethod(
            f"rules of linear layers do not cover the experts of {view.family.title}: leave linear out of the composite"
        )
    return [layer for layer in view.linear_layers() if layer.group in groups] if groups else []


def _reads_only_values(switch: Switch) -> bool:
    """True if queries and keys need no gradient and the projection to queries, keys and values has no rule."""
    composite = switch.current
    free = composite.linear.input_projection.backward is None
    return switch.fixed and free and not composite.bilinear.serves_gate


def _project(_: nn.Module, args: tuple[Any, ...], y: Tensor, layer: LinearLayer, switch: Switch) -> Tensor:
    """Forward hook of a linear layer: gives its output the gradient of the layer's rule."""
    return project(args[0].to(y.device), y, layer, switch)


def _read_out(module: nn.Module, args: tuple[Any, ...], y: Tensor, switch: Switch) -> Tensor:
    """Forward hook of `Readout`: gives logits the gradient of the rule of the unembedding."""
    state, weight, bias = args
    return project(state, y, ReadRows(module, "linear", False, weight, bias), switch)


def _values_only(_: nn.Module, args: tuple[Any, ...], y: Tensor, weight: Tensor) -> Tensor:
    """Forward hook of a fused projection whose queries and keys pass no gradient on."""
    return values_only(args[0], y, weight)


def _norm_hook(norm: NormView, switch: Switch) -> Hook:
    """A forward hook that gives a norm's output the gradient of its rule."""
    weight, _ = norm.parameters()

    def hook(_: nn.Module, args: tuple[Any, ...], y: Tensor) -> Tensor:
        x = args[0].to(y.device)  # the module may run on another device than the one before it
        return normalise(x, y, norm.kind, weight, norm.eps, switch)

    return hook


def _attend(
    kernel: Kernel,
    module: nn.Module,
    *tensors: Any,
    switch: Switch,
    readers: Sequence[Reader],
    openly: bool,
    layer: int,
    **options: Any,
) -> Attended:
    """Attention whose gradients follow the composite in force; stands in for the kernel of attention layer `layer`.

    From queries [B, H, T, K], keys and values [B, G, T, K] (which may be an encoder's) and a mask to context
    [B, T, H, K] and weights. `openly` uses our eager kernel, which has rules for the softmax and soft caps.
    """
    query, key, value, mask = tensors
    weights: Tensor | None
    for reader in readers:
        query, key, value = reader.before_attention(layer, (query, key, value))
    query, key, value = attend_with(query, key, value, switch)
    if openly:
        context, weights = attend_openly(query, key, value, mask, switch, **options)
    else:
        context, weights = kernel(module, query, key, value, mask, **options)
    for reader in readers:
        context = reader.after_attention(layer, context)
    return context, weights


class _Checkpointed(nn.Module):
    """A block that runs again in the backward pass. All other attributes are those of the block that it wraps."""

    def __init__(self, block: nn.Module, dtype: torch.dtype) -> None:
        super().__init__()
        self.block = block
        self._dtype = dtype

    def forward(self, *args: Any, **options: Any) -> Any:
        # with an early stop torch would skip the hook that unloads the block's last offloaded module
        once_more: dict[str, Any] = {"use_reentrant": False, "preserve_rng_state": False, "early_stop": False}
        return checkpoint(self._run, *args, **once_more, **options)

    def _run(self, *args: Any, **options: Any) -> Any:
        with unrounded(self._dtype):  # again, since the backward pass calls this outside of the scope's context
            return self.block(*args, **options)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("block"), name)


@contextmanager
def _checkpointed_blocks(view: ModelView, path: str) -> Iterator[None]:
    """Inside, the blocks of the list at `path` are checkpointed: only their inputs are kept for the backward pass."""
    holder: Any = view.model.get_submodule(path)
    blocks = list(holder)
    try:
        for i, block in enumerate(blocks):
            holder[i] = _Checkpointed(block, view.dtype)
        yield
    finally:
        for i, block in enumerate(blocks):
            holder[i] = block
