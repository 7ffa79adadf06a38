"""Where in a corpus a neuron is most active, and why: its best contexts, explained from its own activation.

A text's score is the largest activation over its positions (AttnLRP 4.3).
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Collection, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import nn

from lrp_core.activations import peaks_of
from lrp_core.activity import batch_of, counting
from lrp_core.guard import undisturbed
from lrp_core.interventions.neurons import check_neuron
from lrp_core.methods.gradients import READINGS, attribution
from lrp_core.scope import rules_on
from lrp_core.types import UnsupportedMethod
from lrp_core.view import ModelView


@dataclass(frozen=True, order=True)
class Context:
    """A text in which a neuron is active: how much, and where. Of equal activations the earlier text is the better."""

    value: float
    rank: int  # minus the number of the text
    position: int = field(compare=False)
    ids: tuple[int, ...] = field(compare=False)

    @property
    def number(self) -> int:
        """The number of the text in the corpus, from 0."""
        return -self.rank


def best_contexts(
    view: ModelView,
    texts: Iterable[Sequence[int]],
    layer: int,
    neuron: int,
    count: int,
    rows: int = 16,
    apart: Collection[int] = (),
) -> list[Context]:
    """The `count` texts, token ids each, in which the neuron's largest activation is largest, in descending order.

    Texts are streamed, `rows` in a forward; no more than the best are held. At tokens whose ids are `apart`, as those
    that a tokenizer's template adds, activations do not count. Raises UserError as `check_neuron`.
    """
    check_neuron(view, layer, neuron)
    look = partial(_contexts, view, layer=layer, neuron=neuron, apart=torch.tensor(sorted(apart), dtype=torch.int64))
    best: list[Context] = []
    part: list[tuple[int, Sequence[int]]] = []
    for numbered in enumerate(texts):
        part.append(numbered)
        if len(part) == rows:
            best = heapq.nlargest(count, [*best, *look(part)])
            part = []
    return heapq.nlargest(count, [*best, *(look(part) if part else ())])


@torch.inference_mode()
def _contexts(
    view: ModelView, part: Sequence[tuple[int, Sequence[int]]], layer: int, neuron: int, apart: torch.Tensor
) -> list[Context]:
    batch = batch_of([ids for _, ids in part]).to(view.device)
    with undisturbed(view), peaks_of(view, counting(batch, apart)) as peaks:
        view.hidden(batch)
    values, positions = (of[:, neuron].tolist() for of in peaks.layers[layer])
    return [
        Context(value, -number, position, tuple(ids))
        for (number, ids), value, position in zip(part, values, positions, strict=True)
        if math.isfinite(value)
    ]


def explain_context(view: ModelView, context: Context, layer: int, neuron: int, method: str = "attnlrp") -> list[float]:
    """Relevance of the context's tokens for the neuron's activation at its position, by a gradient-family method.

    Raises as `explain_contexts`.
    """
    (relevance,) = explain_contexts(view, [(context, layer, neuron)], method)
    return relevance


def explain_contexts(
    view: ModelView, asked: Sequence[tuple[Context, int, int]], method: str = "attnlrp"
) -> list[list[float]]:
    """The relevance of several contexts, each with its layer and neuron, in one forward and one backward.

    Raises UnsupportedMethod for methods of another family, UserError as `check_neuron`.
    """
    for _, layer, neuron in asked:
        check_neuron(view, layer, neuron)
    if method not in READINGS:
        raise UnsupportedMethod(f"{method!r} is no gradient method; choose {' or '.join(READINGS)}")
    reading, batch = READINGS[method], batch_of([context.ids for context, _, _ in asked]).to(view.device)
    inputs: dict[int, torch.Tensor] = {}  # by layer, [B, T, F]
    with undisturbed(view), torch.inference_mode(False), torch.enable_grad(), ExitStack() as undo:
        token, full = (one.detach() for one in view.embed(batch))
        token.requires_grad_()
        for layer in {layer for _, layer, _ in asked}:
            hook = partial(_keep, inputs=inputs, layer=layer, shape=batch.input_ids.shape)
            undo.callback(view.blocks[layer].down.register_forward_pre_hook(hook).remove)
        with rules_on(view, (reading.composite,)):
            view.hidden(batch, token)
            own = [inputs[layer][row, one.position, neuron] for row, (one, layer, neuron) in enumerate(asked)]
            activation = torch.stack([one.to(view.device) for one in own]).sum()  # rows know nothing of each other
            share = reading.composite.bilinear.share if view.family.gate is not None else 1.0
            # gate and signal have half each of a product's relevance: here the product is what is explained
            (gradient,) = torch.autograd.grad(activation * share, token)
    relevance = attribution(gradient, full, batch.attention_mask, reading.measure)
    return [row[: len(one.ids)].tolist() for row, (one, _, _) in zip(relevance, asked, strict=True)]


def _keep(
    _: nn.Module, args: tuple[Any, ...], *, inputs: dict[int, torch.Tensor], layer: int, shape: Sequence[int]
) -> None:
    inputs[layer] = args[0].view(*shape, -1)  # some families flatten it
