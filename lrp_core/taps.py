"""Readers of one model instance inside a `with`: passes give them values and gradients; they change nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

from torch import Tensor, nn

from lrp_core.families import Family
from lrp_core.feed_forward import Passing, at_neurons, share_above
from lrp_core.parts.block import BlockView, ExpertsView
from lrp_core.parts.weights import weights_of
from lrp_core.rules import KEPT, BiasTap, LayerRelevance, NeuronRelevance, Switch, Tap
from lrp_core.rules.projections import ProjectionRelevance
from lrp_core.view import ModelView

_ROUTER = KEPT.index("router")


@contextmanager
def tapped_neurons(view: ModelView, neurons: NeuronRelevance, switch: Switch) -> Iterator[None]:
    """Inside, `neurons` hears of what enters each down projection."""
    with ExitStack() as undo:
        for layer, block in enumerate(view.blocks):
            tap = partial(_tap_neurons, layer=layer, family=view.family, neurons=neurons, switch=switch)
            undo.enter_context(at_neurons(block, tap))
        yield


def _tap_neurons(
    x: Tensor, passing: Passing, *, layer: int, family: Family, neurons: NeuronRelevance, switch: Switch
) -> Tensor:
    """The input of a down projection."""

    def read(gradient: Tensor, value: Tensor) -> None:
        share = share_above(passing.part, family, switch.current.bilinear)
        gradient, value = (passing.spread(one, neurons.mask.shape) for one in (gradient, value))
        neurons.read(layer, passing.part.first, share, gradient, value, passing.there(neurons.mask))

    return Tap.apply(x, read)


@contextmanager
def tapped_projections(view: ModelView, projections: ProjectionRelevance) -> Iterator[None]:
    """Inside, `projections` hears of what the linear layers of attention put out."""
    with ExitStack() as undo:
        for layer, block in enumerate(view.blocks):
            for module, outputs in block.projections().items():
                read = partial(projections.read, layer, outputs)
                undo.callback(module.register_forward_hook(partial(_tap_output, read=read)).remove)
        yield


@contextmanager
def tapped_layers(view: ModelView, layers: LayerRelevance, switch: Switch) -> Iterator[None]:
    """Inside, `layers` hears of the inputs of blocks, of the last one's output, of everything with a bias, and of what
    enters and leaves routers.
    """
    with ExitStack() as undo:
        for layer, block in enumerate(view.blocks):
            below = partial(_tap_input, read=partial(layers.cross, layer))
            undo.callback(block.module.register_forward_pre_hook(below).remove)
            for module, bias in _biases(block):
                hook = partial(_tap_bias, read=partial(layers.keep_bias, layer, bias))
                undo.callback(module.register_forward_hook(hook).remove)
            if block.experts is not None:
                undo.enter_context(_tapped_router(block.experts, layer, layers, switch))
        above = partial(_tap_output, read=partial(layers.cross, len(view.blocks)))
        undo.callback(view.blocks[-1].module.register_forward_hook(above).remove)
        yield


@contextmanager
def _tapped_router(experts: ExpertsView, layer: int, layers: LayerRelevance, switch: Switch) -> Iterator[None]:
    """Inside, `layers` hears what comes to the weights of experts, and what of that goes on to what the router reads.

    The sigmoid is no module: what comes to it is what comes to its other factor, the shared expert.
    """
    comes, goes = (partial(layers.keep, layer, _ROUTER, sign) for sign in (1, -1))

    def comes_to_gate(gradient: Tensor, value: Tensor) -> None:
        if switch.current.bilinear.serves_gate:
            comes(gradient, value)

    def tap_weights(_: nn.Module, args: tuple[Any, ...], y: Any) -> Any:
        return y[0], Tap.apply(y[1], comes), y[2]

    with ExitStack() as undo:  # first of the hooks: below the rule of a product
        undo.callback(experts.router.register_forward_hook(tap_weights, prepend=True).remove)
        readers = [experts.router]
        if experts.shared is not None and experts.shared_gate is not None:
            tap = partial(_tap_output, read=comes_to_gate)
            undo.callback(experts.shared.register_forward_hook(tap, prepend=True).remove)
            readers.append(experts.shared_gate)
        for module in readers:
            undo.callback(module.register_forward_pre_hook(partial(_tap_input, read=goes)).remove)
        yield


def _biases(block: BlockView) -> Iterator[tuple[nn.Module, Tensor]]:
    """The modules of a block that add a bias [O] to what they put out; fused ones come once."""
    linear = (block.query, block.key, block.value, block.output, block.gate, block.up, block.down)
    for module in dict.fromkeys(module for module in linear if module is not None):
        with weights_of(module) as weights:
            bias = weights.bias
        if bias is not None:
            yield module, bias.detach()
    for norm in block.norms:
        _, bias = norm.parameters()
        if bias is not None:
            yield norm.module, bias


def _tap_input(_: nn.Module, args: tuple[Any, ...], *, read: Callable[[Tensor, Tensor], None]) -> tuple[Any, ...]:
    return (Tap.apply(args[0], read), *args[1:])


def _tap_output(_: nn.Module, args: tuple[Any, ...], y: Any, *, read: Callable[[Tensor, Tensor], None]) -> Any:
    if isinstance(y, tuple):
        return (Tap.apply(y[0], read), *y[1:])
    return Tap.apply(y, read)


def _tap_bias(_: nn.Module, args: tuple[Any, ...], y: Tensor, *, read: Callable[[Tensor], None]) -> Tensor:
    return BiasTap.apply(y, read)
