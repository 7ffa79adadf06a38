"""Methods of the gradient family: a forward pass, and a backward pass for each set of rules and explained number."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from closelook.lrp_core.device.clock import StageClock
from closelook.lrp_core.device.precision import wide
from closelook.lrp_core.families.generic import UNSOUND
from closelook.lrp_core.methods import METHODS
from closelook.lrp_core.operations.explain import ID_INPUTS, PIXELS
from closelook.lrp_core.operations.forward import forward_pass
from closelook.lrp_core.operations.roots import PATCHES, Root
from closelook.lrp_core.places.reading import Measure, Reader
from closelook.lrp_core.readers.attention import Attended, Kernel, around_attention
from closelook.lrp_core.records.explained import EXPLAINED, relevance_of
from closelook.lrp_core.records.finer import FINER
from closelook.lrp_core.records.types import (
    FULL,
    Batch,
    Relevance,
    Request,
    Requests,
    Results,
    UnsupportedMethod,
    UnsupportedModel,
)
from closelook.lrp_core.rules import ATTNLRP, PLAIN, Composite, changed
from closelook.lrp_core.rules.composite import EPSILON, composite_of
from closelook.lrp_core.views.view import ModelView

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

    The model runs as its users run it, and rules act on its operations (`lrp_core.operations`). Full and partial
    embeddings share a backward pass; so do the pixels of images. `finer` asks for relevance besides that of tokens, by
    name (`lrp_core.records.finer`). `checkpoint` saves memory by a second forward pass. `clock` measures the seconds of
    the forward pass, under "gradients", and of each method's backward pass and aggregation. `composite` sets the rules
    for methods of other packages, whose function binds it: they are gradient x input under these rules.

    With `texts` = N the batch has the same N texts again and again, and its rows differ only in what is predicted and
    where: the tokens of an answer, say, or the labels of a classifier. Then the N texts run through the forward pass
    once, and every N rows have a backward pass. In causal models later tokens do not influence a prediction, so rows
    may hold the whole answer.

    Raises UnsupportedMethod for a method of another pass, UnsupportedModel for an operation without a rule, and
    UserError for a contrastive request without foils.
    """
    passes: dict[tuple[Composite, str], dict[Request, Reading]] = {}
    for request in requests:
        reading = reading_of(request, composite)
        _check_sound(view, reading)
        passes.setdefault((reading.composite, request.explanation), {})[request] = reading
    size = len(batch) if texts is None else texts
    batch = batch.to(view.device)
    names = [name for name, is_asked in finer.items() if is_asked]
    return _of_passes(view, batch, size, passes, names, checkpoint, _no_lap if clock is None else clock.lap)


def _check_sound(view: ModelView, reading: Reading) -> None:
    """Raise UnsupportedModel for a reading under rules of a model class in which they are known to lose relevance."""
    name = type(view.model).__name__
    if name in UNSOUND and reading.composite.name != PLAIN.name:
        raise UnsupportedModel(f"rules lose relevance in {name}: its lrp does not sum to the logit; take gradients")


#: `explain_many` for methods with a rule for the softmax, which compute attention in steps. As another function they
#: have a pass of their own, so that the methods of the usual pass keep faster kernels.
explain_openly = partial(explain_many)


def explain_explicitly(view: ModelView, batch: Batch, requests: Requests, *, epsilon: float, **options: Any) -> Results:
    """`explain_many` under `explicit_rules`: the slow form of AttnLRP, with attention in steps."""
    return explain_many(view, batch, requests, composite=explicit_rules(epsilon), **options)


def explicit_rules(epsilon: float) -> Composite:
    """AttnLRP's rules, with `epsilon` added to the size of every sum that relevance is divided by."""
    return replace(ATTNLRP, name="attnlrp_explicit", stabiliser=epsilon)


def _of_passes(
    view: ModelView,
    batch: Batch,
    size: int,
    passes: Mapping[tuple[Composite, str], Mapping[Request, Reading]],
    finer: Sequence[str],
    checkpoint: bool,
    lap: Callable[..., None],
) -> Results:
    """The results of backward passes, for rows in which `size` texts repeat."""
    texts = batch.rows(0, size)
    composites = tuple(dict.fromkeys(composite for composite, _ in passes))
    explanations = tuple(dict.fromkeys(explanation for _, explanation in passes))
    readers: list[Reader] = [FINER[name].reader_class()(view, texts, composites) for name in finer]
    results: dict[Request, list[Relevance]] = {}
    with watching(view, readers):
        forward = forward_pass(view, batch, texts, explanations, composites, view.stacks if checkpoint else ())
        lap("forward", "gradients")
        rows = batch.parts(size)
        left = len(passes) * len(rows)
        for (composite, explanation), asked in passes.items():
            for number, row in enumerate(rows):
                left -= 1
                here = slice(number * size, (number + 1) * size)
                explained, logits = (forward.output[name][here] for name in (explanation, "logits"))
                for reader in readers:
                    reader.begin({request.method: way.measure for request, way in asked.items()})
                if any(way.measure is not MEASURES["product"] for way in asked.values()):
                    forward.roots.require_one_table()
                gradients = forward.gradients(explained, composite, keep=left > 0)
                lap("backward", *(request.method for request in asked))
                for request, way in asked.items():
                    fields = fields_of(request, way, gradients, row)
                    for reader in readers:
                        fields |= reader.fields(request.method, composite, way.conserves)
                    conserves = way.conserves and sums(request)
                    relevance = relevance_of(logits=logits, explained=explained, conserves=conserves, **fields)
                    results.setdefault(request, []).append(relevance)
                    lap("aggregate", request.method)
    return {request: Relevance.joined(several) for request, several in results.items()}


def fields_of(
    request: Request, reading: Reading, gradients: Sequence[tuple[Root, Tensor]], batch: Batch
) -> dict[str, Any]:
    """Fields of a Relevance for tokens and, of images, pixels, from the gradients at the roots of a forward pass."""
    how = REDUCTIONS[request.option("reduce", "sum")]
    whole = request.embedding == FULL and reading.measure is MEASURES["product"]
    by_stream: dict[str, list[Tensor]] = {}
    for root, gradient in gradients:
        if root.words or whole:
            relevance = reading.measure(wide(gradient), wide(root.value.detach()))
            if root.stream == PIXELS:
                relevance = relevance.movedim(1, -1)  # [B, H, W, C]
            by_stream.setdefault(root.stream, []).append(relevance)
    reduced = {name: how(_added(parts)) for name, parts in by_stream.items()}
    pixels = reduced.get(PIXELS)
    fields: dict[str, Any] = {"tokens": reduced[ID_INPUTS[0] if pixels is None else PATCHES]}
    fields["tokens"] = fields["tokens"].masked_fill(batch.attention_mask == 0, 0)
    if batch.decoder_attention_mask is not None:
        fields["decoder_tokens"] = reduced[ID_INPUTS[1]].masked_fill(batch.decoder_attention_mask == 0, 0)
    if pixels is not None:
        fields["pixels"] = pixels.masked_fill(batch.attention_mask.amax(-1)[:, None, None] == 0, 0)
    return fields


def _added(parts: Sequence[Tensor]) -> Tensor:
    """The sum of relevances [B, T, D], on the first one's device; side by side where roots differ in width."""
    together = [part.to(parts[0].device) for part in parts]
    if len({part.shape for part in together}) == 1:
        return torch.stack(together).sum(0)
    return torch.cat(together, -1)


@contextmanager
def watching(view: ModelView, readers: Sequence[Reader]) -> Iterator[None]:
    """Inside, `readers` see values inside the model, and gradients in backward passes."""

    def attend(kernel: Kernel, module: nn.Module, *tensors: Any, layer: int, **options: Any) -> Attended:
        read: Sequence[Tensor] = tensors[:3]
        mask = tensors[3]
        for reader in readers:
            read = reader.before_attention(layer, read)
        context, weights = kernel(module, *read, mask, **options)
        for reader in readers:
            context = reader.after_attention(layer, context)
        return context, weights

    with ExitStack() as undo:
        for reader in readers:
            undo.enter_context(reader.tapping())
        if readers:
            around = {each.attention: partial(attend, layer=layer) for layer, each in enumerate(view.attentions)}
            undo.enter_context(around_attention(view, around))
        yield


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
