"""Checks around every pass: its numbers depend on the sample and the weights only, or an error is raised.

The caller's modes, autocast and other threads change nothing. A pass puts hooks on the model, so threads use a model
one after the other. A model that belongs to the caller can be restored after it was wrapped, changed and run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import fields, replace
from threading import Lock, RLock
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from transformers import PretrainedConfig

from closelook.lrp_core.device.transfer import to_host
from closelook.lrp_core.operations.forward import Piece, joined, pieces_of
from closelook.lrp_core.records.explained import EXPLAINED
from closelook.lrp_core.records.types import (
    Batch,
    Relevance,
    Request,
    Requests,
    Results,
    UnusableRows,
    UserError,
    rows_named,
)
from closelook.lrp_core.views.view import ModelView

#: How far two forward passes may differ in the logit of one prediction, relative to the logit (at least 1), by dtype:
#: another batch rounds differently. Stored float64 logits may be from versions that rounded to float32 inside. A larger
#: difference means another token or another model.
ROUNDING = {"float64": 1e-5, "float32": 1e-3, "float16": 0.05, "bfloat16": 0.2}

_OUTSIDE = "token index out of range, the vocabulary has"
_locks: WeakKeyDictionary[nn.Module, Any] = WeakKeyDictionary()  # by model, so that all views of a model share its lock
_making_lock = Lock()


def guarded(
    explain: Callable[..., Results],
    view: ModelView,
    batch: Batch,
    requests: Requests,
    texts: int | None = None,
    **options: Any,
) -> Results:
    """Call `explain(view, batch, requests, **options)` under :func:`undisturbed`, and check what goes in and comes out.

    It gets rows that are padded on the right, or of one length, and their results are put into the order of `batch`.
    With `texts` it gets the number of different texts, which repeat in the batch, by this name. Raises UnusableRows for
    rows that :func:`check_rows` refuses and for rows whose logits are not finite. Raises UserError, naming method and
    field, for results of the wrong type or shape, and for explained numbers that differ from the logits of the result.
    """
    check_rows(view, batch)
    batch = batch.to("cpu")
    size = len(batch) if texts is None else len(batch.first_texts(texts))
    parts: list[tuple[Piece, Results]] = []
    with undisturbed(view), torch.inference_mode(False):
        # pieces are copies, as the method may write into them, and autograd refuses tensors made in inference mode
        for piece in pieces_of(view, batch, size):
            shared = {} if texts is None else {"texts": piece.size}
            parts.append((piece, explain(view, piece.batch, requests, **options, **shared)))
            for request in requests:
                _check_fields(request, parts[-1][1].get(request), piece.batch)
    results: Results = {}
    for request in requests:
        results[request] = joined(batch, [(piece, of_piece[request]) for piece, of_piece in parts])
    _check_numbers(view, batch, results)
    return results


def _check_fields(request: Request, result: Relevance | None, batch: Batch) -> None:
    """Raise UserError unless `result` is a Relevance whose fields have the shapes of the batch."""
    if not isinstance(result, Relevance):
        raise UserError(f"method {request.method} returned no Relevance for {request.explanation!r}")
    ids, of_decoder = batch.input_ids, batch.decoder_input_ids
    sizes = {"B": len(batch), "T": ids.shape[1], "U": None if of_decoder is None else of_decoder.shape[1]}
    for field in fields(Relevance):
        values = getattr(result, field.name)
        says = f"method {request.method}: its {field.name}"
        if not isinstance(values, Tensor):
            if field.name in ("tokens", "explained", "logit_target"):
                raise UserError(f"{says} is no tensor but {type(values).__name__}")
            continue
        if not values.is_floating_point() and field.name != "neuron_positions":
            raise UserError(f"{says} are {values.dtype} instead of floating point numbers")
        axes = field.metadata["axes"].split()
        expected = [sizes.get(axis) for axis in axes]
        wrong = any(known not in (None, size) for known, size in zip(expected, values.shape, strict=False))
        if wrong or values.dim() != len(expected):
            shown = ", ".join(str(sizes.get(axis) or axis) for axis in axes)
            raise UserError(f"{says} have the shape {list(values.shape)} instead of [{shown}]")


def _check_numbers(view: ModelView, batch: Batch, results: Mapping[Request, Relevance]) -> None:
    """Raise UnusableRows for logits that are not finite, UserError for explained numbers that differ from them."""
    numbers = []
    for result in results.values():
        pair = [result.logit_target] if result.logit_foil is None else [result.logit_target, result.logit_foil]
        numbers += [result.explained, torch.stack(pair, 1)]  # [B], and [B, 2] of target and foil or [B, 1]
    stands_for_sample, *on_host = to_host([(batch.attention_mask != 0).any(-1), *numbers])
    for logits in on_host[1::2]:
        _check_finite(view, logits, stands_for_sample)
    rounding = ROUNDING[str(view.dtype).removeprefix("torch.")]
    for request, explained, logits in zip(results, on_host[::2], on_host[1::2], strict=True):
        choice = EXPLAINED.get(request.explanation)
        if choice is None or not choice.linear or (choice.needs_foil and logits.shape[1] == 1):
            continue
        gap = (explained - choice.of(logits)).abs()
        allowed = rounding * logits.abs().amax(-1).clamp(min=1)
        wrong = (gap > allowed) & gap.isfinite() & stands_for_sample  # [B]
        if results[request].conserves and wrong.any():
            named = rows_named(_numbers_of(wrong))
            raise UserError(f"method {request.method}: its explained number is not that of its logits on {named}")


@contextmanager
def undisturbed(view: ModelView) -> Iterator[None]:
    """Inside, only this thread uses the model, in evaluation mode, with frozen parameters and without autocast.

    Other threads wait. Afterwards modes, parameters and autocast are restored.
    """
    accelerator = torch.accelerator.current_accelerator()
    kinds = {"cpu"} if accelerator is None else {"cpu", accelerator.type}
    with lock_of(view.model), ExitStack() as undo:
        for kind in kinds:
            undo.enter_context(torch.autocast(kind, enabled=False))
        for module in view.model.modules():
            if module.training:
                undo.callback(setattr, module, "training", True)
                module.training = False
        for parameter in view.model.parameters():
            if parameter.requires_grad:
                undo.callback(parameter.requires_grad_, True)
                parameter.requires_grad_(False)
        yield


def check_rows(view: ModelView, batch: Batch) -> None:
    """Raise UnusableRows for rows that are too long or whose readout position is not on a token that the head reads.

    Raises UserError for input of another kind than the model's, and IndexError for ids outside the vocabulary: on a GPU
    these would make the device unusable for the process, and negative ids would be read from the vocabulary's end. A
    row that is all padding stands for no sample and is accepted.
    """
    view.check_input(batch)
    batch = replace(batch, pixel_values=None).to("cpu")  # once, since every check below would wait for the device
    _check_prefix(view, batch)
    real = batch.attention_mask != 0  # [B, T]
    lengths, longest = real.sum(-1), view.max_length
    _refuse(lengths > longest, "too_long", f"the model takes {longest} tokens: drop or shorten longer samples")
    stands_for_sample = lengths > 0
    if batch.decoder_attention_mask is not None:
        real = batch.decoder_attention_mask != 0  # [B, U]
        lengths = real.sum(-1)
        _refuse(lengths > longest, "too_long", f"the decoder takes {longest} tokens: shorten decoder_input_ids")
    _check_range(batch.every_id, view.vocab, _OUTSIDE)
    says = "label out of range, the number of the model's labels is" if view.kind.labels else _OUTSIDE
    _check_range(batch.explained_ids, view.n_targets, says)
    _check_segments(view, batch)
    at = batch.position.clamp(0, real.shape[1] - 1)[:, None]
    on_token = (at[:, 0] == batch.position) & real.gather(1, at)[:, 0]
    _refuse(~on_token & stands_for_sample, "no_position", "the position to predict is on padding or outside of the row")
    _check_span(view, batch, real)
    if view.kind.reads == "anywhere":
        return
    readable = _readable(view, batch)  # [B, T]
    before = readable.cumsum(-1).gather(1, at)[:, 0]  # tokens up to the position
    first_or_last = 1 if view.kind.reads == "first" else readable.sum(-1)
    elsewhere = (before != first_or_last) | ~readable.gather(1, at)[:, 0]
    reason = f"the model's head reads at the {view.kind.reads} token alone: give its index as the position"
    reason += "" if readable.equal(real) else " (padding tokens of the text do not count)"
    _refuse(elsewhere & stands_for_sample, "no_position", reason)


def _check_span(view: ModelView, batch: Batch, real: Tensor) -> None:
    """Raise UserError for spans of a model that writes no text, UnusableRows if a span's position is on no token."""
    if batch.span_positions is None or batch.span_ids is None:
        return
    if view.kind.labels or view.kind.slot:
        raise UserError(
            f"{view.family.title} predict one token or label, and no answer of several tokens: leave the span out, or "
            "take a causal model or an encoder-decoder"
        )
    _check_range(batch.span_ids, view.n_targets, _OUTSIDE)
    at = batch.span_positions.clamp(0, real.shape[1] - 1)
    outside = ((at != batch.span_positions) | ~real.gather(1, at)).any(-1)
    _refuse(outside, "no_position", "a token of the span is read on padding or outside of the row")


def _readable(view: ModelView, batch: Batch) -> Tensor:
    """True for tokens at which the head may read, [B, T]; classifiers on causal models skip the padding token's id."""
    real = batch.attention_mask != 0
    skips = view.kind.reads == "last" and view.config.pad_token_id is not None
    return real & (batch.input_ids != view.config.pad_token_id) if skips else real


def _check_prefix(view: ModelView, batch: Batch) -> None:
    """Check `decoder_input_ids`, the decoder's text so far."""
    ids, mask = batch.decoder_input_ids, batch.decoder_attention_mask
    if not view.kind.decoder:
        if ids is not None:
            raise UserError(f"{view.family.title} have no decoder: leave decoder_input_ids out")
        return
    if ids is None or mask is None:
        raise UserError(
            f"{view.family.title} need decoder_input_ids: give the decoder's text so far, at least its start token"
        )
    end = view.config.eos_token_id
    if end is None:
        return
    ends = torch.isin(ids, torch.tensor(end, device=ids.device)) & (mask != 0)
    after_start = mask.cumsum(-1) > 1  # BART's start token is its end token
    detail = "decoder_input_ids hold the end token, after which nothing is predicted: leave it out"
    _refuse((ends & after_start).any(-1), "ended", detail)


def _check_range(ids: Tensor, size: int, says: str) -> None:
    """Raise IndexError, naming the rows and continuing as `says`, if any of `ids` [B, N] is not in 0 to `size` - 1."""
    outside = ((ids < 0) | (ids >= size)).any(-1)
    if outside.any():
        raise IndexError(f"{rows_named(_numbers_of(outside))}: {says} {size}")


def _check_segments(view: ModelView, batch: Batch) -> None:
    """Raise UserError for token types if the model has none, IndexError for token types that it does not know."""
    if batch.token_type_ids is None:
        return
    if not view.n_segments:
        raise UserError(f"{view.family.title} have no segments: leave token_type_ids out")
    _check_range(
        batch.token_type_ids, view.n_segments, "token type out of range, the number of the model's segments is"
    )


def _check_finite(view: ModelView, logits: Tensor, stands_for_sample: Tensor) -> None:
    """Raise UnusableRows for samples with `logits` [B, N] that are not finite; rows of padding do not count."""
    finite = logits.isfinite().all(-1)
    dtype = str(view.dtype).removeprefix("torch.")
    _refuse(~finite & stands_for_sample, "logits_not_finite", f"the model's logits are not finite in {dtype}")


def _refuse(rows: Tensor, reason: str, detail: str) -> None:
    """Raise UnusableRows for the `rows` [B] that are True, if any."""
    if rows.any():
        raise UnusableRows(_numbers_of(rows), reason, detail)


def _numbers_of(rows: Tensor) -> list[int]:
    """The indices at which `rows` [B] is True."""
    return torch.nonzero(rows).flatten().tolist()


def lock_of(model: nn.Module) -> Any:
    """The re-entrant lock of a model, the same for all its views."""
    with _making_lock:
        return _locks.setdefault(model, RLock())


@contextmanager
def left_as_it_was(model: nn.Module) -> Iterator[None]:
    """Inside, only this thread may use the model, and may wrap and run it; afterwards it is restored.

    Restored are modes (training or evaluation), whether parameters require gradients, and the fields of configs: what
    `view_of` changes.
    """
    with lock_of(model):
        training = {module: module.training for module in model.modules()}
        takes_gradients = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
        values = (value for module in model.modules() for value in vars(module).values())
        configs = {id(value): value for value in values if isinstance(value, PretrainedConfig)}.values()
        kept = [(config, dict(vars(config))) for config in configs]
        try:
            yield
        finally:
            for config, fields_of_config in kept:
                vars(config).clear()
                vars(config).update(fields_of_config)
            for module, trains in training.items():
                module.training = trains
            for parameter, takes in takes_gradients:
                parameter.requires_grad_(takes)
