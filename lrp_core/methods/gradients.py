"""Methods of the gradient family: a forward pass, and a backward pass for each set of rules and explained number."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from closelook.lrp_core.device.clock import StageClock
from closelook.lrp_core.device.precision import wide
from closelook.lrp_core.methods import METHODS
from closelook.lrp_core.readers.readout import explained_numbers
from closelook.lrp_core.records.explained import EXPLAINED, explanations_of, relevance_of
from closelook.lrp_core.records.finer import FINER
from closelook.lrp_core.records.types import FULL, Batch, Relevance, Request, Requests, Results, UnsupportedMethod
from closelook.lrp_core.rules import PLAIN, Composite, changed
from closelook.lrp_core.rules.composite import EPSILON, composite_of
from closelook.lrp_core.rules.reading import Measure, Reader
from closelook.lrp_core.rules.scope import rules_on
from closelook.lrp_core.views.generic import GenericView
from closelook.lrp_core.views.view import ModelView, Traced

MEASURES: dict[str, Measure] = {
    "product": lambda gradient, value: gradient * value,
    "absolute": lambda gradient, _: gradient.abs(),
    "square": lambda gradient, _: gradient.square(),
}
#: How a token's relevances [..., D] become one number [...], by the values of the option `reduce`.
REDUCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "sum": lambda relevance: relevance.sum(-1),
    "l1": lambda relevance: relevance.abs().sum(-1),
    "l2": lambda relevance: torch.linalg.vector_norm(relevance, dim=-1),
}


@dataclass(frozen=True)
class Reading:
    """A reading of a backward pass: the rules of the pass, and an elementwise function of gradient and value."""

    composite: Composite
    measure: Measure
    conserves: bool


@dataclass(frozen=True)
class Pass:
    """A forward pass and one explanation of it: the numbers to differentiate, and readers of gradients in the model.

    The forward ran N texts; the batch explains one or more predictions of each, N rows at a time.
    """

    traced: Traced  # embeddings of the N texts
    rows: Sequence[Batch]  # the batch in parts of N rows, each with the same texts
    logits: Tensor  # [B, 2] of target and foil, for the rows of all parts
    numbers: Tensor  # [B] the explained numbers
    readers: Sequence[Reader]
    lap: Callable[..., None]  # called with a stage and methods when the stage ends

    def backward(self, asked: Mapping[Request, Reading], keep: bool) -> Results:
        """The relevance of the requests `asked`, by a backward pass for each part of `rows`.

        `keep` says that the graph is needed afterwards.
        """
        parts: dict[Request, list[Relevance]] = {request: [] for request in asked}
        sources = [self.traced.token]
        if self.traced.pixels is not None:
            sources.append(self.traced.pixels)
        size = len(self.rows[0])
        of_rows = zip(self.rows, self.logits.split(size), self.numbers.split(size), strict=True)
        for number, (row, logits, explained) in enumerate(of_rows, start=1):
            measures = {request.method: reading.measure for request, reading in asked.items()}
            for reader in self.readers:
                reader.begin(measures)
            more = keep or number < len(self.rows)
            gradients = torch.autograd.grad(explained.sum(), sources, retain_graph=more)
            self.lap("backward", *(request.method for request in asked))
            for request, reading in asked.items():
                fields = self._of_tokens(request, reading, gradients, row)
                for reader in self.readers:
                    fields |= reader.fields(request.method, reading.composite, reading.conserves)
                conserves = reading.conserves and sums(request)
                parts[request].append(relevance_of(logits=logits, explained=explained, conserves=conserves, **fields))
                self.lap("aggregate", request.method)
        return {request: Relevance.joined(several) for request, several in parts.items()}

    def _of_tokens(
        self, request: Request, reading: Reading, gradients: Sequence[Tensor], batch: Batch
    ) -> dict[str, Any]:
        """Fields of a Relevance for tokens and, of images, pixels, from the gradients at embeddings and pixels."""
        how, traced = request.option("reduce", "sum"), self.traced
        value = traced.full if request.embedding == FULL else traced.token.detach()
        fields: dict[str, Any] = batch.parted(attribution(gradients[0], value, batch.every_mask, reading.measure, how))
        if traced.pixels is not None:
            gradient, picture = gradients[1].movedim(1, -1), traced.pixels.detach().movedim(1, -1)  # [B, H, W, C]
            mask = batch.attention_mask.amax(-1)[:, None, None]
            fields["pixels"] = attribution(gradient, picture, mask, reading.measure, how)
        return fields


def sums(request: Request) -> bool:
    """True if the relevance of this request sums to the explained number, given a method that promises it.

    It does not if dimensions are reduced by a norm, or if the explained number is not linear in the logits.
    """
    return request.option("reduce", "sum") == "sum" and EXPLAINED[request.explanation].linear


READINGS: dict[str, Reading] = {}
for _method in METHODS.values():
    if _method.rules is not None:
        READINGS[_method.name] = Reading(composite_of(_method.rules), MEASURES[_method.measure], _method.conserves)


def explain_many(
    view: ModelView,
    batch: Batch,
    requests: Requests,
    *,
    checkpoint: bool = False,
    clock: StageClock | None = None,
    composite: Composite | None = None,
    texts: int | None = None,
    **finer: bool,
) -> Results:
    """The relevance for all `requests`, from a forward pass and a backward pass for each composite and explanation.

    Full and partial embeddings share a backward pass, since a sum has the same gradient as each of its terms; so do the
    pixels of images. `finer` asks for relevance besides that of tokens, by name (`lrp_core.records.finer`).
    `checkpoint` saves memory by a second forward pass. `clock` measures the seconds of the forward pass, under
    "gradients", and of each method's backward pass and aggregation. `composite` sets the rules for methods of other
    packages, whose function binds it: they are gradient x input under these rules.

    With `texts` = N the batch has the same N texts again and again, and its rows differ only in what is predicted and
    where: the tokens of an answer, say, or the labels of a classifier. Then the N texts run through the forward pass
    once, and every N rows have a backward pass. In causal models later tokens do not influence a prediction, so rows
    may hold the whole answer.

    Models that no family describes follow rules on the operations that they run (`lrp_core.operations`).

    Raises UnsupportedMethod for a method of another pass, and UserError for a contrastive request without foils and,
    with `texts`, for a batch in which texts do not repeat.
    """
    readings = {request: reading_of(request, composite) for request in requests}
    if isinstance(view, GenericView) and any(reading.composite != PLAIN for reading in readings.values()):
        from closelook.lrp_core.operations.method import explain_unpadded  # imports this module

        return explain_unpadded(view, batch, requests, clock=clock, composite=composite, texts=texts, **finer)
    passes: dict[tuple[Composite, str], dict[Request, Reading]] = {}
    for request, reading in readings.items():
        passes.setdefault((reading.composite, request.explanation), {})[request] = reading
    read = (batch if texts is None else batch.first_texts(texts)).to(view.device)
    batch = batch.to(view.device)
    rows = batch.parts(len(read))
    lap = _no_lap if clock is None else clock.lap
    composites = tuple(dict.fromkeys(rules for rules, _ in passes))
    readers = [FINER[name].reader_class()(view, read, composites) for name, is_asked in finer.items() if is_asked]
    results: Results = {}
    with torch.enable_grad(), rules_on(view, composites, readers, checkpointing=checkpoint) as switch:
        traced = view.traced(read)
        hidden = view.hidden(read, traced.token)
        logits, numbers = explained_numbers(view, hidden, batch, explanations_of(requests))
        lap("forward", "gradients")
        for left, ((rules, explanation), asked) in zip(reversed(range(len(passes))), passes.items(), strict=True):
            switch.current = rules
            one_pass = Pass(traced, rows, logits, numbers[explanation], readers, lap)
            results |= one_pass.backward(asked, keep=left > 0)
    return {request: results[request] for request in requests}


#: `explain_many` for methods with a rule for the softmax, which need eager attention. As another function they have a
#: pass of their own, so that the methods of the usual pass keep faster kernels.
explain_openly = partial(explain_many)


def attribution(gradient: Tensor, value: Tensor, mask: Tensor, measure: Measure, how: str = "sum") -> Tensor:
    """Relevance of tokens [B, T] from gradient and value [B, T, D], in float32 at least; 0 where `mask` [B, T] is 0.

    For images, relevance of pixels [B, H, W] from gradient and value [B, H, W, C], with a mask [B, 1, 1].
    """
    relevance = measure(wide(gradient), wide(value))
    return REDUCTIONS[how](relevance).masked_fill(mask == 0, 0)


def _no_lap(stage: str, *methods: str) -> None:
    """Stands in for `StageClock.lap` where nothing is measured."""


def reading_of(request: Request, composite: Composite | None) -> Reading:
    """The reading that a request asks for: its method's record's, or gradient x input under `composite`.

    Raises UnsupportedMethod for a method that is not computed in this pass.
    """
    if composite is not None:
        return Reading(composite, MEASURES["product"], conserves=True)
    if request.method not in READINGS:
        raise UnsupportedMethod(f"{request.method!r} is no gradient method; choose {' or '.join(READINGS)}")
    reading = READINGS[request.method]
    return replace(reading, composite=changed(reading.composite, request.option("composite", EPSILON)))
