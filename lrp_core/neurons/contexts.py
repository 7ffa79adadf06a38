"""The max-activating examples (contexts) of a neuron in a corpus, and relevance of their tokens for its activation.

Texts are ranked by the neuron's largest activation over their positions (AttnLRP 4.3).
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Collection, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from closelook.lrp_core.device.transfer import to_host
from closelook.lrp_core.interventions.neurons import check_neuron
from closelook.lrp_core.methods.gradients import READINGS, fields_of
from closelook.lrp_core.neurons.activations import peaks_of
from closelook.lrp_core.neurons.activity import batch_of, counting
from closelook.lrp_core.neurons.near_ties import SPARE, runs
from closelook.lrp_core.operations.explain import run
from closelook.lrp_core.operations.forward import inputs_of
from closelook.lrp_core.parts.block import FeedForward
from closelook.lrp_core.readers.feed_forward import Passing, at_neurons
from closelook.lrp_core.records.types import Request, UnsupportedMethod
from closelook.lrp_core.views.guard import undisturbed
from closelook.lrp_core.views.view import ModelView

NumberedText = tuple[int, Sequence[int]]  # a text's number in the corpus, and its token ids
Inputs = dict[tuple[int, FeedForward], tuple[Tensor, Passing]]  # of down projections, by layer and part


@dataclass(frozen=True, order=True)
class Context:
    """A text and a neuron's largest activation in it. Contexts compare by activation, then by number, lower first."""

    value: float  # the largest activation
    rank: int  # minus the number of the text, so that the earlier of two texts is the greater
    position: int = field(compare=False)  # of the largest activation
    ids: tuple[int, ...] = field(compare=False)  # the text's tokens

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
    """The `count` texts (lists of token ids) in which the neuron is most active, in descending order.

    Texts are streamed, `rows` in a forward; only the best and SPARE more are kept. These are computed again one by one
    and ranked by the result, so that other texts of a batch do not influence the order. Activations that are equal up
    to rounding are in the order of the texts, since other processors round differently. Activations at tokens with ids
    in `apart` do not count, such as those that a tokenizer's template adds. Raises UserError as `check_neuron`.
    """
    check_neuron(view, layer, neuron)
    look = partial(_contexts, view, layer=layer, neuron=neuron, apart=torch.tensor(sorted(apart), dtype=torch.int64))
    best: list[Context] = []
    part: list[NumberedText] = []
    for numbered in enumerate(texts):
        part.append(numbered)
        if len(part) == rows:
            best = heapq.nlargest(count + SPARE, [*best, *look([part])])
            part = []
    finalists = heapq.nlargest(count + SPARE, [*best, *(look([part]) if part else ())])
    recomputed = sorted(look([[(context.number, context.ids)] for context in finalists]), reverse=True)
    run_of = runs(np.array([[context.value for context in recomputed]]))[0]
    order = sorted(range(len(recomputed)), key=lambda index: (run_of[index], recomputed[index].number))
    return [recomputed[index] for index in order[:count]]


@torch.inference_mode()
def _contexts(
    view: ModelView, batches: Sequence[Sequence[NumberedText]], layer: int, neuron: int, apart: Tensor
) -> list[Context]:
    """The context of each numbered text, without texts that have no finite activation; a forward for each batch.

    The device is waited for once.
    """
    of_batches: list[Tensor] = []  # the values of a batch, then their positions
    for texts in batches:
        batch = batch_of([ids for _, ids in texts]).to(view.device)
        with undisturbed(view), peaks_of(view, counting(batch, apart)) as peaks:
            view.logits(batch)
        of_batches += [of[:, neuron] for of in peaks.of(layer)]
    on_host = to_host(of_batches)
    contexts = []
    for texts, values, positions in zip(batches, on_host[::2], on_host[1::2], strict=True):
        for (number, ids), value, position in zip(texts, values.tolist(), positions.tolist(), strict=True):
            if math.isfinite(value):
                contexts.append(Context(value, -number, position, tuple(ids)))
    return contexts


def explain_context(view: ModelView, context: Context, layer: int, neuron: int, method: str = "attnlrp") -> list[float]:
    """Relevance of a context's tokens for the neuron's activation at the context's position, by a gradient method.

    Raises as `explain_contexts`.
    """
    (relevance,) = explain_contexts(view, [(context, layer, neuron)], method)
    return relevance


def explain_contexts(
    view: ModelView, examples: Sequence[tuple[Context, int, int]], method: str = "attnlrp"
) -> list[list[float]]:
    """Relevance of tokens for neurons' activations, given as (context, layer, neuron): a list for each.

    It takes one forward and one backward pass. Raises UnsupportedMethod for a method that is no gradient method, and
    UserError as `check_neuron`.
    """
    for _, layer, neuron in examples:
        check_neuron(view, layer, neuron)
    if method not in READINGS:
        raise UnsupportedMethod(f"{method!r} is no gradient method; choose {' or '.join(READINGS)}")
    reading, batch = READINGS[method], batch_of([context.ids for context, _, _ in examples]).to(view.device)
    inputs: Inputs = {}

    def activations(_: Any) -> dict[str, Tensor]:
        explained = []
        for row, (one, layer, neuron) in enumerate(examples):
            part = view.blocks[layer].part_of(neuron)
            x, passing = inputs[layer, part]
            of_texts = passing.spread(x, batch.input_ids.shape)  # [B, T, F]
            explained.append(of_texts[row, one.position, neuron - part.first].to(view.device))
        return {"activation": torch.stack(explained)}

    with undisturbed(view), torch.inference_mode(False), ExitStack() as undo:
        for layer in {layer for _, layer, _ in examples}:
            undo.enter_context(at_neurons(view.blocks[layer], partial(_note_input, inputs=inputs, layer=layer)))
        forward = run(view.model.base_model, inputs_of(view, batch), activations, (reading.composite,), view.dtype)
        gradients = forward.gradients(forward.output["activation"], reading.composite, keep=False)
    relevance = fields_of(Request(method), reading, gradients, batch)["tokens"].cpu()
    return [row[: len(one.ids)].tolist() for row, (one, _, _) in zip(relevance, examples, strict=True)]


def _note_input(x: Tensor, passing: Passing, *, inputs: Inputs, layer: int) -> None:
    """Visitor of `at_neurons`: notes in `inputs` the input of a down projection, under its layer and part."""
    inputs[layer, passing.part] = x, passing
