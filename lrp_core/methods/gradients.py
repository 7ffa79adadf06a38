"""Gradient-family methods: one forward, one backward per set of rules and explained logit, whatever is asked."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from lrp_core.clock import StageClock
from lrp_core.composites import EPSILON
from lrp_core.explained import EXPLAINED
from lrp_core.methods import METHODS
from lrp_core.readout import explained_numbers
from lrp_core.rules import COMPOSITES, Composite, HeadRelevance, LayerRelevance, NeuronRelevance, changed
from lrp_core.rules.heads import Measure
from lrp_core.rules.projections import ProjectionRelevance
from lrp_core.scope import rules_on
from lrp_core.types import FULL, Batch, Relevance, Request, UnsupportedMethod
from lrp_core.view import ModelView, Traced

MEASURES: dict[str, Measure] = {
    "product": lambda gradient, value: gradient * value,
    "absolute": lambda gradient, _: gradient.abs(),
    "square": lambda gradient, _: gradient.square(),
}


@dataclass(frozen=True)
class Reading:
    """The rules of the backward pass, and how gradient and value become relevance, elementwise."""

    composite: Composite
    measure: Measure
    conserves: bool

    @property
    def bounded(self) -> bool:
        """Whether boundaries of layers are accounted for: what biases keep is known under the epsilon rule alone."""
        return self.conserves and not self.composite.linear.ruled


@dataclass(frozen=True)
class Inside:
    """What is told of the gradient on its way, as far as it is asked for."""

    heads: HeadRelevance | None
    neurons: NeuronRelevance | None
    layers: LayerRelevance | None
    projections: ProjectionRelevance | None

    @classmethod
    def asked(cls, view: ModelView, read: Batch, heads: bool, neurons: bool, layers: bool, projections: bool) -> Inside:
        """The readers of what is asked for, of the batch that is `read`."""
        return cls(
            HeadRelevance(view.n_layers) if heads else None,
            NeuronRelevance(view.n_layers, view.n_neurons, read.attention_mask) if neurons else None,
            LayerRelevance(view.n_layers, len(read), view.routed) if layers else None,
            ProjectionRelevance(view.n_layers, read.attention_mask) if projections else None,
        )

    def begin(self, measures: dict[str, Measure]) -> None:
        """Starts a backward pass that is read under each of these measures."""
        for one in (self.heads, self.neurons, self.layers, self.projections):
            if one is not None:
                one.begin(measures)

    def of(self, method: str, reading: Reading) -> dict[str, Any]:
        """Fields of `Relevance`, of the pass that has just ended."""
        fields: dict[str, Any] = {} if self.heads is None else {"heads": self.heads.of(method)}
        if self.neurons is not None:
            own = self.neurons.of(method)
            fields |= {"neurons": own.total, "neuron_positions": own.at, "neuron_values": own.value}
        if self.layers is not None and reading.bounded:
            fields |= self.layers.of(method)
        if self.projections is not None:
            fields |= self.projections.of(method, weighed=reading.composite.bilinear.serves_gate)
        return fields


@dataclass(frozen=True)
class Pass:
    """A forward pass and one explanation of it: the number to differentiate, and what reads gradients inside."""

    traced: Traced
    rows: Sequence[Batch]  # each time the texts come
    logits: Tensor  # of target and foil [B, 2], of all `rows` together
    numbers: Tensor  # explained [B]
    inside: Inside
    lap: Callable[..., None]

    def backward(self, asked: Mapping[Request, Reading], keep: bool) -> dict[Request, Relevance]:
        """What is `asked`, by a backward each time the texts come; `keep` the graph for another explanation."""
        parts: dict[Request, list[Relevance]] = {request: [] for request in asked}
        sources = (self.traced.token,) if self.traced.pixels is None else (self.traced.token, self.traced.pixels)
        size = len(self.rows[0])
        of_rows = zip(self.rows, self.logits.split(size), self.numbers.split(size), strict=True)
        for number, (row, logits, explained) in enumerate(of_rows, start=1):
            self.inside.begin({request.method: reading.measure for request, reading in asked.items()})
            more = keep or number < len(self.rows)
            gradients = torch.autograd.grad(explained.sum(), sources, retain_graph=more)
            self.lap("backward", *(request.method for request in asked))
            for request, reading in asked.items():
                parts[request].append(self._relevance(request, reading, gradients, row, logits, explained))
                self.lap("aggregate", request.method)
        return {request: Relevance.joined(own) for request, own in parts.items()}

    def _relevance(
        self,
        request: Request,
        reading: Reading,
        gradients: tuple[Tensor, ...],
        batch: Batch,
        logits: Tensor,
        explained: Tensor,
    ) -> Relevance:
        how, traced = request.option("reduce", "sum"), self.traced
        value = traced.full if request.embedding == FULL else traced.token.detach()
        pixels = None
        if traced.pixels is not None:
            gradient, picture = (one.movedim(1, -1) for one in (gradients[1], traced.pixels.detach()))  # [B, H, W, C]
            pixels = attribution(gradient, picture, batch.attention_mask.amax(-1)[:, None, None], reading.measure, how)
        return Relevance(
            **batch.parted(attribution(gradients[0], value, batch.every_mask, reading.measure, how)),
            explained=explained.detach(),
            logit_target=logits[:, 0].detach(),
            logit_foil=None if batch.foil_ids is None else logits[:, 1].detach(),
            **self.inside.of(request.method, reading),
            conserves=reading.conserves and how == "sum" and EXPLAINED[request.explanation].linear,
            pixels=pixels,
        )


READINGS = {
    method.name: Reading(COMPOSITES[method.rules], MEASURES[method.measure], method.conserves)
    for method in METHODS.values()
    if method.rules is not None
}


def explain_many(
    view: ModelView,
    batch: Batch,
    requests: Sequence[Request],
    *,
    heads: bool = False,
    neurons: bool = False,
    boundaries: bool = False,
    projections: bool = False,
    checkpoint: bool = False,
    clock: StageClock | None = None,
    composite: Composite | None = None,
    texts: int | None = None,
) -> dict[Request, Relevance]:
    """All `requests` from one forward and one backward per composite and explanation.

    Embeddings share a pass, since their sum has the gradient of each of its terms; of images, the pixels do, too.
    `heads` pools the relevance of the attention heads' outputs, `neurons` sums that of the feed-forward layers'
    neurons, `boundaries` that between blocks, for methods that promise a sum and composites without rules of linear
    layers, `projections` that of what attention's queries, keys, values and outputs are; `checkpoint` trades a second
    forward for memory; `clock` is told the seconds of the forward pass, as "gradients", and of each method's backward
    and aggregation.
    `composite` is for methods of other packages, whose function binds it: gradient x input under these rules.
    With `texts` the rows are so many texts again and again, which differ in nothing but what is predicted and where, as
    the tokens of an answer do that its decoder is given, or the labels of a classifier: they share a forward of these
    texts, and each time they come has a backward. A causal model's prediction owes nothing to what stands behind it.
    Raises UnsupportedMethod for a method of another pass, UserError for a contrastive request without foils, and with
    `texts` for rows of other texts.
    """
    readings = {request: _reading(request, composite) for request in requests}
    if boundaries and all(reading.composite.linear.ruled for reading in readings.values()):
        raise UnsupportedMethod("what biases keep is known with the epsilon rule alone: ask for composite 'epsilon'")
    passes: dict[tuple[Composite, str], list[Request]] = {}
    for request in requests:
        passes.setdefault((readings[request].composite, request.explanation), []).append(request)
    read = (batch if texts is None else batch.first_texts(texts)).to(view.device)
    batch = batch.to(view.device)
    rows = batch.parts(len(read))
    lap = clock.lap if clock is not None else _no_lap
    inside = Inside.asked(view, read, heads, neurons, boundaries, projections)
    composites = tuple(dict.fromkeys(rules for rules, _ in passes))
    results: dict[Request, Relevance] = {}
    with ExitStack() as scope:
        scope.enter_context(torch.inference_mode(False))
        scope.enter_context(torch.enable_grad())
        switch = scope.enter_context(rules_on(view, composites, **vars(inside), checkpointing=checkpoint))
        traced = view.traced(read)
        hidden = view.hidden(read, traced.token)
        hidden = hidden.expand(len(rows), *hidden.shape).flatten(0, 1)
        logits, numbers = explained_numbers(view, hidden, batch, [request.explanation for request in requests])
        lap("forward", "gradients")
        for left, ((rules, explanation), asked) in zip(reversed(range(len(passes))), passes.items(), strict=True):
            switch.current = rules
            one = Pass(traced, rows, logits, numbers[explanation], inside, lap)
            results |= one.backward({request: readings[request] for request in asked}, keep=left > 0)
    return {request: results[request] for request in requests}


#: The same, for methods whose softmax has a rule: in a call of their own they leave the kernels of others alone.
explain_openly = partial(explain_many)


#: How a token's relevances [..., D] become one number [...], by the values of the option `reduce`.
REDUCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "sum": lambda relevance: relevance.sum(-1),
    "l1": lambda relevance: relevance.abs().sum(-1),
    "l2": lambda relevance: torch.linalg.vector_norm(relevance, dim=-1),
}


def reduced(relevance: Tensor, how: str) -> Tensor:
    """Relevance of tokens [...] from that of their dimensions [..., D], by one of REDUCTIONS."""
    return REDUCTIONS[how](relevance)


def attribution(
    gradient: Tensor, value: Tensor, mask: Tensor, measure: Callable[[Tensor, Tensor], Tensor], how: str = "sum"
) -> Tensor:
    """Relevance of tokens [B, T] from gradient and value [B, T, D], in float32 at least; 0 where `mask` [B, T] is 0.

    So of pixels: [B, H, W] from [B, H, W, C], with a mask [B, 1, 1].
    """
    wide = torch.promote_types(value.dtype, torch.float32)
    return reduced(measure(gradient.to(wide), value.to(wide)), how).masked_fill(mask == 0, 0)


def _no_lap(stage: str, *methods: str) -> None:
    pass


def _reading(request: Request, composite: Composite | None) -> Reading:
    if composite is not None:
        return Reading(composite, MEASURES["product"], conserves=True)
    if request.method not in READINGS:
        raise UnsupportedMethod(f"{request.method!r} is no gradient method; choose {' or '.join(READINGS)}")
    reading = READINGS[request.method]
    return replace(reading, composite=changed(reading.composite, request.option("composite", EPSILON)))
