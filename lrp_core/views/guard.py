"""The promise of every pass, whatever its caller does: numbers of the sample and the weights alone, or an error.

A pass puts hooks on the model, so a model serves one thread at a time; others wait.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import fields, replace
from threading import Lock, RLock
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from lrp_core.device.transfer import to_host
from lrp_core.families.generic import GenericFamily
from lrp_core.records.explained import EXPLAINED
from lrp_core.records.types import Batch, Relevance, Request, Results, UnusableRows, UserError, rows_named
from lrp_core.views.view import ModelView

#: How far logits of one prediction by two forwards may lie apart, relative to them or to 1: other batches round
#: otherwise, and those of stored relevance may be of models in float64 that still rounded to float32 inside. Beyond
#: that, they are of another token, or of another model.
ROUNDING = {"float64": 1e-5, "float32": 1e-3, "float16": 0.05, "bfloat16": 0.2}

_locks: WeakKeyDictionary[nn.Module, Any] = WeakKeyDictionary()  # of models, so that two views of one share it
_making_lock = Lock()


def guarded(
    explain: Callable[..., Results], view: ModelView, batch: Batch, requests: Sequence[Request], **options: Any
) -> Results:
    """`explain(view, batch, requests, **options)` on an undisturbed model, outside of the caller's inference mode.

    Raises UnusableRows for rows that `check_rows` refuses, and for rows whose logits are not finite; UserError, naming
    method and field, for relevance of another shape or kind, or of another number than its logits give.
    """
    check_rows(view, batch)
    with undisturbed(view), torch.inference_mode(False):
        # no gradient may pass by tensors that were made in inference mode
        batch = batch.mapped(lambda value: value.clone() if value.is_inference() else value)
        results = explain(view, batch, requests, **options)
    for request in requests:
        _check_fields(request, results.get(request), batch)
    _check_numbers(view, batch, results)
    return results


def _check_fields(request: Request, result: Relevance | None, batch: Batch) -> None:
    """Raises UserError for what is no relevance of the batch."""
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
            raise UserError(f"{says} are {values.dtype} and no real numbers with a fraction")
        axes = field.metadata["axes"].split()
        expected = [sizes.get(axis) for axis in axes]
        wrong = any(known not in (None, size) for known, size in zip(expected, values.shape, strict=False))
        if wrong or values.dim() != len(expected):
            shown = ", ".join(str(sizes.get(axis) or axis) for axis in axes)
            raise UserError(f"{says} have the shape {list(values.shape)} instead of [{shown}]")


def _check_numbers(view: ModelView, batch: Batch, results: Mapping[Request, Relevance]) -> None:
    """Raises UnusableRows for rows whose logits are not finite, UserError for an explained number that is another than
    its logits give. The device is waited for once.

    Explained numbers that are not linear in logits are not compared, nor those of methods that promise no sum: they may
    be of another word.
    """
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
    """Inside, the model is this thread's alone, in evaluation mode, with frozen parameters and without autocast.

    Afterwards modes, parameters and autocast are as they were.
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
    """Raises UnusableRows for rows that are too long or predict where no token is.

    Ids outside the vocabulary are an IndexError on every device, as they are on a CPU: on a GPU they would cost the
    process its device, and negative ones would be read from the vocabulary's end. A row of padding alone stands for no
    sample; its tokens get no relevance.
    """
    view.check_input(batch)
    batch = replace(batch, pixel_values=None).to("cpu")  # every check below would wait for the device
    _check_prefix(view, batch)
    real = batch.attention_mask != 0  # [B, T]
    lengths, longest = real.sum(-1), view.max_length
    _refuse(lengths > longest, "too_long", f"the model takes {longest} tokens: drop or shorten longer samples")
    stands_for_sample = lengths > 0
    if batch.decoder_attention_mask is not None:
        real = batch.decoder_attention_mask != 0  # [B, U]
        lengths = real.sum(-1)
        _refuse(lengths > longest, "too_long", f"the decoder takes {longest} tokens: shorten what it has seen")
    _check_range(batch.every_id, view.vocab, "token index out of range, the vocabulary has")
    if view.kind.labels:
        _check_range(batch.explained_ids, view.n_targets, "label out of range, the number of the model's labels is")
    else:
        _check_range(batch.explained_ids, view.n_targets, "token index out of range, the vocabulary has")
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
    """Raises UserError for spans of models that say no answers, UnusableRows where a token is read where none is."""
    if batch.span_positions is None or batch.span_ids is None:
        return
    if isinstance(view.family, GenericFamily):
        raise UserError("models that no family describes explain one token of an answer at a time, no span")
    if view.kind.labels or view.kind.slot:
        raise UserError(f"{view.family.title} predict one token or label: spans are of models that go on with a text")
    _check_range(batch.span_ids, view.n_targets, "token index out of range, the vocabulary has")
    at = batch.span_positions.clamp(0, real.shape[1] - 1)
    outside = ((at != batch.span_positions) | ~real.gather(1, at)).any(-1)
    _refuse(outside, "no_position", "a token of the span is read on padding or outside of the row")


def _readable(view: ModelView, batch: Batch) -> Tensor:
    """Mask [B, T] of tokens where a head may read; classifiers on causal models skip the padding token's id."""
    real = batch.attention_mask != 0
    skips = view.kind.reads == "last" and view.config.pad_token_id is not None
    return real & (batch.input_ids != view.config.pad_token_id) if skips else real


def _check_prefix(view: ModelView, batch: Batch) -> None:
    """Raises UserError for rows without what a decoder has seen, or with it where there is none, and UnusableRows where
    that ends the sequence before the prediction.
    """
    ids, mask = batch.decoder_input_ids, batch.decoder_attention_mask
    if (ids is not None and mask is not None) != view.kind.decoder:
        prefix = "decoder_input_ids, what the decoder has seen"
        if view.kind.decoder:
            raise UserError(f"{view.family.title} need {prefix}: its start token at least")
        raise UserError(f"{view.family.title} have no place for {prefix}: leave it out")
    if ids is None or mask is None:
        return
    end = view.config.eos_token_id
    if end is None:
        return
    ends = torch.isin(ids, torch.tensor(end, device=ids.device)) & (mask != 0)
    after_start = mask.cumsum(-1) > 1  # BART's start token is its end token
    detail = "what the decoder has seen ends the sequence: nothing follows the end token"
    _refuse((ends & after_start).any(-1), "ended", detail)


def _check_range(ids: Tensor, size: int, says: str) -> None:
    """Raises IndexError for `ids` [B, N] outside of a table of `size` rows."""
    outside = ((ids < 0) | (ids >= size)).any(-1)
    if outside.any():
        raise IndexError(f"{rows_named(_numbers_of(outside))}: {says} {size}")


def _check_segments(view: ModelView, batch: Batch) -> None:
    """Raises UserError for token types of a model that has none, IndexError for those that it does not know."""
    if batch.token_type_ids is None:
        return
    if not view.n_segments:
        raise UserError(f"{view.family.title} have no segments: leave token_type_ids out")
    _check_range(batch.token_type_ids, view.n_segments, "token type out of range, the segments number")


def _check_finite(view: ModelView, logits: Tensor, stands_for_sample: Tensor) -> None:
    """Raises UnusableRows for samples whose logits, a row of [B, N] on the CPU, are not finite."""
    finite = logits.isfinite().all(-1)
    dtype = str(view.dtype).removeprefix("torch.")
    _refuse(~finite & stands_for_sample, "logits_not_finite", f"the model's logits are not finite in {dtype}")


def _refuse(rows: Tensor, reason: str, detail: str) -> None:
    """`rows` [B] bool."""
    if rows.any():
        raise UnusableRows(_numbers_of(rows), reason, detail)


def _numbers_of(rows: Tensor) -> list[int]:
    """The indices of those of `rows` [B] that are true."""
    return torch.nonzero(rows).flatten().tolist()


def lock_of(model: nn.Module) -> Any:
    with _making_lock:
        return _locks.setdefault(model, RLock())
