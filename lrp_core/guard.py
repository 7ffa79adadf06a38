"""What every pass promises whatever its caller does: numbers of the sample and the weights alone, or an error.

A pass puts hooks on the model, so a model serves one thread at a time; others wait.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from threading import Lock, RLock
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from lrp_core.transfer import to_host
from lrp_core.types import Batch, Relevance, Request, UnusableRows, UserError, rows_named
from lrp_core.view import ModelView

_locks: WeakKeyDictionary[nn.Module, Any] = WeakKeyDictionary()  # of models, so that two views of one share it
_making_lock = Lock()


def guarded(
    explain: Callable[..., dict[Request, Relevance]], view: ModelView, batch: Batch, *args: Any, **options: Any
) -> dict[Request, Relevance]:
    """`explain(view, batch, *args, **options)` on an undisturbed model, outside of the caller's inference mode.

    Raises UnusableRows for rows that `check_rows` refuses, and for rows whose logits are not finite.
    """
    check_rows(view, batch)
    with undisturbed(view), torch.inference_mode(False):
        results = explain(view, _for_gradients(batch), *args, **options)
    given = [logit for result in results.values() for logit in (result.logit_target, result.logit_foil)]
    if logits := [logit for logit in given if logit is not None]:
        check_logits(view, batch, torch.stack([logit.to(logits[0]) for logit in logits], 1))
    return results


def _for_gradients(batch: Batch) -> Batch:
    """The batch with copies of tensors that were made in inference mode: no gradient may pass by those."""
    made = {name: value for name, value in vars(batch).items() if value is not None and value.is_inference()}
    return replace(batch, **{name: value.clone() for name, value in made.items()})


@contextmanager
def undisturbed(view: ModelView) -> Iterator[None]:
    """Inside, the model is this thread's alone, in evaluation mode, with frozen parameters and without autocast.

    Afterwards modes, parameters and autocast are as they were.
    """
    accelerator = torch.accelerator.current_accelerator()
    kinds = {"cpu"} if accelerator is None else {"cpu", accelerator.type}
    with _lock_of(view.model), ExitStack() as undo:
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
    width = real.shape[1]
    predicted = torch.stack([ids for ids in (batch.target_ids, batch.foil_ids) if ids is not None], 1)
    _check_range(batch.every_id, view.vocab, "token index out of range, the vocabulary has")
    what = (
        "label out of range, the number of the model's labels is"
        if view.kind.labels
        else "token index out of range, the vocabulary has"
    )
    _check_range(predicted, view.n_targets, what)
    _check_segments(view, batch)
    at = batch.position.clamp(0, width - 1)
    on_token = (at == batch.position) & real[torch.arange(len(batch), device=real.device), at]
    _refuse(~on_token & stands_for_sample, "no_position", "the position to predict is on padding or outside of the row")
    if view.kind.reads != "anywhere":
        read = _readable(view, batch)  # [B, T]
        seen = read.cumsum(-1).gather(1, at[:, None])[:, 0]  # tokens up to the position
        elsewhere = seen != (1 if view.kind.reads == "first" else read.sum(-1))
        elsewhere |= ~read.gather(1, at[:, None])[:, 0]
        reason = f"the model's head reads at the {view.kind.reads} token alone: give its index as the position"
        reason += "" if read.equal(real) else " (padding tokens of the text do not count)"
        _refuse(elsewhere & stands_for_sample, "no_position", reason)


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
        advice = "its start token at least" if view.kind.decoder else "leave it out"
        has = "need" if view.kind.decoder else "have no place for"
        raise UserError(f"{view.family.title} {has} decoder_input_ids, what the decoder has seen: {advice}")
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
    outside = torch.nonzero(((ids < 0) | (ids >= size)).any(-1)).flatten().tolist()
    if outside:
        raise IndexError(f"{rows_named(outside)}: {says} {size}")


def _check_segments(view: ModelView, batch: Batch) -> None:
    """Raises UserError for token types of a model that has none, IndexError for those that it does not know."""
    if batch.token_type_ids is None:
        return
    if not view.n_segments:
        raise UserError(f"{view.family.title} have no segments: leave token_type_ids out")
    _check_range(batch.token_type_ids, view.n_segments, "token type out of range, the segments number")


def check_logits(view: ModelView, batch: Batch, logits: Tensor) -> None:
    """Raises UnusableRows for samples whose logits, a row of [B, N], are not finite."""
    finite, stands_for_sample = to_host([logits.isfinite().all(-1), (batch.attention_mask != 0).any(-1)])
    dtype = str(view.dtype).removeprefix("torch.")
    _refuse(~finite & stands_for_sample, "logits_not_finite", f"the model's logits are not finite in {dtype}")


def _refuse(rows: Tensor, reason: str, detail: str) -> None:
    """`rows` [B] bool."""
    if rows.any():
        raise UnusableRows(torch.nonzero(rows).flatten().tolist(), reason, detail)


def _lock_of(model: nn.Module) -> Any:
    with _making_lock:
        return _locks.setdefault(model, RLock())
