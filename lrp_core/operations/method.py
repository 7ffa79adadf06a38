"""The methods of the gradient family by rules on operations: `explain_many` with the contract of all methods."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from inspect import signature
from typing import Any

import torch
from torch import Tensor

from closelook.lrp_core.device.clock import StageClock
from closelook.lrp_core.device.precision import wide
from closelook.lrp_core.methods.gradients import MEASURES, REDUCTIONS, Reading, reading_of, sums
from closelook.lrp_core.operations.explain import ID_INPUTS, PIXELS, Forward, run
from closelook.lrp_core.operations.roots import PATCHES
from closelook.lrp_core.records.explained import explained_by, explanations_of, relevance_of
from closelook.lrp_core.records.types import (
    FULL,
    Batch,
    Relevance,
    Request,
    Requests,
    Results,
    UnsupportedMethod,
    UserError,
)
from closelook.lrp_core.rules.records import Composite
from closelook.lrp_core.views.generic import GenericView
from closelook.lrp_core.views.view import ModelView


def explain_many(
    view: ModelView,
    batch: Batch,
    requests: Requests,
    *,
    clock: StageClock | None = None,
    composite: Composite | None = None,
    texts: int | None = None,
    **finer: bool,
) -> Results:
    """The relevance for all `requests`, from a forward pass and a backward pass for each composite and explanation.

    Options are those of `lrp_core.methods.gradients.explain_many`.
    """
    asked_finer = [name for name, is_asked in finer.items() if is_asked]
    if asked_finer:
        raise UnsupportedMethod(f"rules on operations give no {' or '.join(asked_finer)}")
    lap = (lambda *_: None) if clock is None else clock.lap
    passes: dict[tuple[Composite, str], dict[Request, Reading]] = {}
    for request in requests:
        reading = reading_of(request, composite)
        passes.setdefault((reading.composite, request.explanation), {})[request] = reading
    read = (batch if texts is None else batch.first_texts(texts)).to(view.device)
    batch = batch.to(view.device)
    rows = batch.parts(len(read))
    packed, order = _packed(read)
    explanations = explanations_of(requests)
    read_at = _moved(batch, order)

    def readout(output: Any) -> dict[str, Tensor]:
        return _numbers(view, output.logits, batch, read_at, explanations)

    composites = tuple(dict.fromkeys(rules for rules, _ in passes))
    forward = run(view.model, _inputs(view, packed, read_at), readout, composites, view.dtype)
    lap("forward", "gradients")
    logits, size = forward.output["logits"].detach(), len(read)
    results: dict[Request, list[Relevance]] = {request: [] for request in requests}
    left = len(passes) * len(rows)
    for (rules, explanation), asked in passes.items():
        numbers = forward.output[explanation]
        for number, row in enumerate(rows):
            left -= 1
            here = slice(number * size, (number + 1) * size)
            fields = _fields(forward, numbers[here], rules, asked, row, order, keep=left > 0)
            lap("backward", *(request.method for request in asked))
            for request, reading in asked.items():
                conserves = reading.conserves and sums(request)
                explained = numbers[here].detach()
                one = relevance_of(logits=logits[here], explained=explained, conserves=conserves, **fields[request])
                results[request].append(one)
                lap("aggregate", request.method)
    return {request: Relevance.joined(several) for request, several in results.items()}


def explain_unpadded(
    view: GenericView, batch: Batch, requests: Requests, *, texts: int | None = None, **options: Any
) -> Results:
    """As `explain_many`, for models that may treat padding in any way: texts of equal length run together, without it.

    Rows that are all padding have zeros.
    """
    size = len(batch) if texts is None else len(batch.first_texts(texts))
    mask = batch.attention_mask[:size].bool().cpu()
    repeats = torch.arange(0, len(batch), max(size, 1))[:, None]
    pieces: list[tuple[Tensor, Tensor, Results]] = []
    for alike in view.alike(mask.sum(-1)):
        rows = (repeats + alike).flatten()
        columns = mask[alike].nonzero()[:, 1].view(len(alike), -1).repeat(len(repeats), 1)
        here, columns = rows.to(batch.input_ids.device), columns.to(batch.input_ids.device)
        some = batch.mapped(lambda value, here=here: value[here])  # type: ignore[misc]
        counted = some.attention_mask.cumsum(-1) - 1
        some = some.over_tokens(partial(torch.gather, dim=1, index=columns), partial(torch.gather, counted, 1))
        found = explain_many(view, some, requests, texts=None if texts is None else len(alike), **options)
        pieces.append((here, columns, found))
    return {request: _spread(batch, request, pieces) for request in requests}


def _spread(batch: Batch, request: Request, pieces: Sequence[tuple[Tensor, Tensor, Results]]) -> Relevance:
    """The relevance of a batch from that of pieces: their rows, the columns [N, T'] of their tokens, their results."""
    results = [found[request] for _, _, found in pieces]
    like = results[0].tokens if results else batch.attention_mask.float()
    tokens = like.new_zeros(batch.input_ids.shape)
    logits, explained = like.new_zeros(batch.explained_ids.shape), like.new_zeros(len(batch))
    for (rows, columns, _), result in zip(pieces, results, strict=True):
        rows, columns = rows.to(like.device), columns.to(like.device)
        tokens[rows[:, None], columns] = result.tokens
        explained[rows] = result.explained
        logits[rows, 0] = result.logit_target
        if result.logit_foil is not None:
            logits[rows, 1] = result.logit_foil
    conserves = all(result.conserves for result in results)
    return relevance_of(tokens, logits, explained, conserves=conserves)


def _packed(batch: Batch) -> tuple[Batch, Tensor]:
    """The batch with each row's padding on the right, and the old column [B, T] of each token in it.

    Models count positions from the left; with padding on the right they need no position ids.
    """
    order = torch.argsort(1 - batch.attention_mask, dim=1, stable=True)
    return batch.over_tokens(lambda of_tokens: of_tokens.gather(1, order), lambda positions: positions), order


def _moved(batch: Batch, order: Tensor) -> Tensor:
    """The readout positions [B, N] of a batch after `_packed`."""
    positions = batch.read_positions
    if batch.decoder_input_ids is not None:
        return positions
    new = order.argsort(1).repeat(len(batch) // max(len(order), 1), 1)
    return new.gather(1, positions)


def _inputs(view: ModelView, batch: Batch, read_at: Tensor) -> dict[str, Any]:
    """The arguments of the model's forward for a batch."""
    takes = signature(view.model.forward).parameters
    if batch.pixel_values is not None:
        return {PIXELS: batch.pixel_values.to(view.dtype)}
    inputs = {
        "input_ids": batch.input_ids,
        "attention_mask": batch.attention_mask,
        "token_type_ids": batch.token_type_ids,
        "decoder_input_ids": batch.decoder_input_ids,
        "decoder_attention_mask": batch.decoder_attention_mask,
        "use_cache": False,
        "return_dict": True,
    }
    if "logits_to_keep" in takes and not view.kind.labels:
        inputs["logits_to_keep"] = read_at.unique()
    return {name: value for name, value in inputs.items() if value is not None and name in takes}


def _numbers(
    view: ModelView, logits: Tensor, batch: Batch, read_at: Tensor, explanations: Sequence[str]
) -> dict[str, Tensor]:
    """Logits [B, 2] of target and foil ([B, 1] without foils), and the explained numbers [B] by explanation."""
    choices = [explained_by(name) for name in explanations]
    if view.predicts_score and not all(choice.linear for choice in choices):
        raise UserError("a score has no probability: explain it by 'target'")
    text = torch.arange(len(batch), device=logits.device) % max(len(logits), 1)
    if logits.dim() == 2:
        chosen = logits[text][:, None]  # [B, 1, C]
    else:
        kept = read_at.unique()
        columns = torch.searchsorted(kept, read_at) if logits.shape[1] == len(kept) else read_at
        chosen = logits[text[:, None], columns]  # [B, N, V]
    chosen = wide(chosen)
    ids = batch.explained_ids[:, None] if batch.span_ids is None else batch.span_ids[..., None]  # [B, N, 2 or 1]
    pairs = chosen.gather(2, ids)
    weights = chosen.new_ones(pairs.shape[:2]) if batch.span_weights is None else batch.span_weights.to(chosen)
    others = None
    if not all(choice.linear for choice in choices):
        others = chosen.scatter(2, ids[..., :1], -torch.inf).logsumexp(-1).flatten()
    numbers = {"logits": (pairs * weights[..., None]).sum(1)}
    for choice in choices:
        number = choice.of(pairs.flatten(0, 1), others).view(weights.shape)
        numbers[choice.name] = (number * weights).sum(1)
    return numbers


def _fields(
    forward: Forward,
    number: Tensor,
    composite: Composite,
    asked: Mapping[Request, Reading],
    batch: Batch,
    order: Tensor,
    keep: bool,
) -> dict[Request, dict[str, Tensor]]:
    """Fields of a Relevance for tokens and, of images, pixels, by request, from a backward pass."""
    gradients = forward.gradients(number, composite, keep)
    fields: dict[Request, dict[str, Tensor]] = {}
    for request, reading in asked.items():
        how = REDUCTIONS[request.option("reduce", "sum")]
        streams: dict[str, list[Tensor]] = {}
        for root, gradient in gradients:
            if root.words or (request.embedding == FULL and reading.measure is MEASURES["product"]):
                relevance = reading.measure(wide(gradient), wide(root.value.detach()))
                if root.stream == PIXELS:
                    relevance = relevance.movedim(1, -1)  # [B, H, W, C]
                streams.setdefault(root.stream, []).append(relevance)
        of_request = {name: how(_summed(parts)) for name, parts in streams.items()}
        if ID_INPUTS[0] in of_request:
            packed = of_request[ID_INPUTS[0]]
            tokens = torch.zeros_like(packed).scatter(1, order, packed)
        else:
            tokens = of_request[PATCHES]
        by_field = {"tokens": tokens.masked_fill(batch.attention_mask == 0, 0)}
        if batch.decoder_input_ids is not None:
            assert batch.decoder_attention_mask is not None
            seen = batch.decoder_attention_mask
            by_field["decoder_tokens"] = of_request[ID_INPUTS[1]].masked_fill(seen == 0, 0)
        if PIXELS in of_request:
            mask = batch.attention_mask.amax(-1)[:, None, None]
            by_field["pixels"] = of_request[PIXELS].masked_fill(mask == 0, 0)
        fields[request] = by_field
    return fields


def _summed(parts: Sequence[Tensor]) -> Tensor:
    """The sum of relevances [B, T, D]; side by side where roots differ in width."""
    if len({part.shape for part in parts}) == 1:
        return torch.stack(list(parts)).sum(0)
    return torch.cat(list(parts), -1)
