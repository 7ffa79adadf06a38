"""Gradient-family methods: one forward, one backward per set of rules and explained logit, whatever is asked."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from lrp_core.clock import StageClock
from lrp_core.composites import EPSILON
from lrp_core.explained import EXPLAINED, explanations_of, relevance_of
from lrp_core.methods import METHODS
from lrp_core.precision import wide
from lrp_core.readout import explained_numbers
from lrp_core.rules import COMPOSITES, Composite, HeadRelevance, LayerRelevance, NeuronRelevance, changed
from lrp_core.rules.latent import Measure
from lrp_core.rules.projections import ProjectionRelevance
from lrp_core.scope import Readers, rules_on
from lrp_core.types import FULL, Batch, Relevance, Request, Results, UnsupportedMethod
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
        """True if boundaries of layers are accounted for: the share of biases is known under the epsilon rule alone."""
        return self.conserves and not self.composite.linear.ruled


@dataclass(frozen=True)
class Pass:
    """A forward pass and one explanation of it: the number to differentiate, and what reads gradients inside."""

    traced: Traced
    rows: Sequence[Batch]  # each time the texts come
    logits: Tensor  # of target and foil [B, 2], of all `rows` together
    numbers: Tensor  # explained [B]
    readers: Readers
    lap: Callable[..., None]

    def backward(self, asked: Mapping[Request, Reading], keep: bool) -> Results:
        """Relevance of the requests `asked`, by a backward each time the texts come; `keep` the graph for more."""
        parts: dict[Request, list[Relevance]] = {request: [] for request in asked}
        sources = [self.traced.token]
        if self.traced.pixels is not None:
            sources.append(self.traced.pixels)
        size = len(self.rows[0])
        of_rows = zip(self.rows, self.logits.split(size), self.numbers.split(size), strict=True)
        for number, (row, logits, explained) in enumerate(of_rows, start=1):
            self.readers.begin({request.method: reading.measure for request, reading in asked.items()})
            more = keep or number < len(self.rows)
            gradients = torch.autograd.grad(explained.sum(), sources, retain_graph=more)
            self.lap("backward", *(request.method for request in asked))
            for request, reading in asked.items():
                fields = self._of_tokens(request, reading, gradients, row) | self._inside(request.method, reading)
                conserves = reading.conserves and _sums(request)
                parts[request].append(relevance_of(logits=logits, explained=explained, conserves=conserves, **fields))
                self.lap("aggregate", request.method)
        return {request: Relevance.joined(several) for request, several in parts.items()}

    def _of_tokens(
        self, request: Request, reading: Reading, gradients: Sequence[Tensor], batch: Batch
    ) -> dict[str, Any]:
        """Fields of `Relevance` at the embeddings and the pixels."""
        how, traced = request.option("reduce", "sum"), self.traced
        value = traced.full if request.embedding == FULL else traced.token.detach()
        fields: dict[str, Any] = batch.parted(attribution(gradients[0], value, batch.every_mask, reading.measure, how))
        if traced.pixels is not None:
            gradient, picture = gradients[1].movedim(1, -1), traced.pixels.detach().movedim(1, -1)  # [B, H, W, C]
            mask = batch.attention_mask.amax(-1)[:, None, None]
            fields["pixels"] = attribution(gradient, picture, mask, reading.measure, how)
        return fields

    def _inside(self, method: str, reading: Reading) -> dict[str, Any]:
        """Fields of `Relevance` inside the model, of the pass that has just ended."""
        readers = self.readers
        fields: dict[str, Any] = {}
        if readers.heads is not None:
            fields["heads"] = readers.heads.of(method)
        if readers.neurons is not None:
            of_neurons = readers.neurons.of(method)
            fields["neurons"] = of_neurons.total
            fields["neuron_positions"] = of_neurons.at
            fields["neuron_values"] = of_neurons.value
        if readers.layers is not None and reading.bounded:
            fields |= readers.layers.of(method)
        if readers.projections is not None:
            fields |= readers.projections.of(method, weighed=reading.composite.bilinear.serves_gate)
        return fields


def _sums(request: Request) -> bool:
    """True if the relevance of this request has the sum that its method promises."""
    return request.option("reduce", "sum") == "sum" and EXPLAINED[request.explanation].linear


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
) -> Results:
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
    passes: dict[tuple[Composite, str], dict[Request, Reading]] = {}
    for request, reading in readings.items():
        passes.setdefault((reading.composite, request.explanation), {})[request] = reading
    read = (batch if texts is None else batch.first_texts(texts)).to(view.device)
    batch = batch.to(view.device)
    rows = batch.parts(len(read))
    lap = _no_lap if clock is None else clock.lap
    mask = read.attention_mask
    readers = Readers(
        HeadRelevance(view.n_layers) if heads else None,
        NeuronRelevance(view.n_layers, view.n_neurons, mask) if neurons else None,
        LayerRelevance(view.n_layers, len(read), view.routed) if boundaries else None,
        ProjectionRelevance(view.n_layers, mask) if projections else None,
    )
    composites = tuple(dict.fromkeys(rules for rules, _ in passes))
    results: Results = {}
    with torch.enable_grad(), rules_on(view, composites, readers, checkpointing=checkpoint) as switch:
        traced = view.traced(read)
        hidden = view.hidden(read, traced.token)
        hidden = hidden.expand(len(rows), *hidden.shape).flatten(0, 1)
        logits, numbers = explained_numbers(view, hidden, batch, explanations_of(requests))
        lap("forward", "gradients")
        for left, ((rules, explanation), asked) in zip(reversed(range(len(passes))), passes.items(), strict=True):
            switch.current = rules
            one_pass = Pass(traced, rows, logits, numbers[explanation], readers, lap)
            results |= one_pass.backward(asked, keep=left > 0)
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


def attribution(gradient: Tensor, value: Tensor, mask: Tensor, measure: Measure, how: str = "sum") -> Tensor:
    """Relevance of tokens [B, T] from gradient and value [B, T, D], in float32 at least; 0 where `mask` [B, T] is 0.

    So of pixels: [B, H, W] from [B, H, W, C], with a mask [B, 1, 1].
    """
    relevance = measure(wide(gradient), wide(value))
    return reduced(relevance, how).masked_fill(mask == 0, 0)


def _no_lap(stage: str, *methods: str) -> None:
    pass


def _reading(request: Request, composite: Composite | None) -> Reading:
    if composite is not None:
        return Reading(composite, MEASURES["product"], conserves=True)
    if request.method not in READINGS:
        raise UnsupportedMethod(f"{request.method!r} is no gradient method; choose {' or '.join(READINGS)}")
    reading = READINGS[request.method]
    return replace(reading, composite=changed(reading.composite, request.option("composite", EPSILON)))
