"""Relevance of the tokens of max-activating examples (contexts) for the activation of a neuron (AttnLRP 4.3)."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from closelook.lrp_core.interventions.neurons import check_neuron
from closelook.lrp_core.methods.gradients import READINGS, fields_of
from closelook.lrp_core.neurons.activity import batch_of
from closelook.lrp_core.operations.explain import run
from closelook.lrp_core.operations.forward import inputs_of
from closelook.lrp_core.parts.block import FeedForward
from closelook.lrp_core.readers.feed_forward import Passing, at_neurons
from closelook.lrp_core.records.types import Request, UnsupportedMethod
from closelook.lrp_core.views.guard import undisturbed
from closelook.lrp_core.views.view import ModelView

Inputs = dict[tuple[int, FeedForward], tuple[Tensor, Passing]]  # of down projections, by layer and part


@dataclass(frozen=True)
class Context:
    """A text, given by its token ids, with a neuron and the position of its activation that is explained."""

    ids: Sequence[int]
    position: int
    layer: int
    neuron: int


def explain_contexts(view: ModelView, contexts: Sequence[Context], method: str = "attnlrp") -> list[list[float]]:
    """The relevance of each context's tokens for its neuron's activation, from one forward and one backward pass.

    Raises UnsupportedMethod for a method that is no gradient method, and UserError as `check_neuron`.
    """
    for context in contexts:
        check_neuron(view, context.layer, context.neuron)
    if method not in READINGS:
        raise UnsupportedMethod(f"{method!r} is no gradient method; choose {' or '.join(READINGS)}")
    reading, batch = READINGS[method], batch_of([context.ids for context in contexts]).to(view.device)
    inputs: Inputs = {}

    def activations(_: Any) -> dict[str, Tensor]:
        explained = []
        for row, context in enumerate(contexts):
            part = view.blocks[context.layer].part_of(context.neuron)
            x, passing = inputs[context.layer, part]
            of_texts = passing.spread(x, batch.input_ids.shape)  # [B, T, F]
            explained.append(of_texts[row, context.position, context.neuron - part.first].to(view.device))
        return {"activation": torch.stack(explained)}

    with undisturbed(view), torch.inference_mode(False), ExitStack() as undo:
        for layer in {context.layer for context in contexts}:
            undo.enter_context(at_neurons(view.blocks[layer], partial(_note_input, inputs=inputs, layer=layer)))
        forward = run(view.model.base_model, inputs_of(view, batch), activations, (reading.composite,), view.dtype)
        gradients = forward.gradients(forward.output["activation"], reading.composite, keep=False)
    relevance = fields_of(Request(method), reading, gradients, batch)["tokens"].cpu()
    return [row[: len(context.ids)].tolist() for row, context in zip(relevance, contexts, strict=True)]


def _note_input(x: Tensor, passing: Passing, *, inputs: Inputs, layer: int) -> None:
    """Visitor of `at_neurons`: notes in `inputs` the input of a down projection, under its layer and part."""
    inputs[layer, passing.part] = x, passing
