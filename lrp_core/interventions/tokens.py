"""Tokens taken away from the input: their embeddings zeroed, replaced by the mask token or by others, or deleted.

AttnLRP B.2 flips a token by zeroing its input embedding, NormXLogit by the mask token or, in causal models, by
deletion. Positions and segments stay where the token's embedding is all that goes; after a deletion positions close up.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from lrp_core.device.transfer import to_device
from lrp_core.records.kinds import DELETE, MASK, RESAMPLE, ZERO
from lrp_core.records.types import Batch, UserError
from lrp_core.views.view import ModelView


def check_way(view: ModelView, way: str, instead: int | Tensor | None = None) -> None:
    """Raises UserError for a way of removing tokens that the model does not know, or a mask token that is missing."""
    known = view.kind.perturbations
    if way not in known:
        raise UserError(f"{view.kind.title}s have no perturbation {way!r}; choose {' or '.join(known)}")
    if way == MASK and instead is None:
        raise UserError(f"the perturbation {MASK!r} needs a mask token and the tokenizer has none; choose {ZERO!r}")


@contextmanager
def tokens_removed(
    view: ModelView, batch: Batch, removed: Tensor, way: str, instead: int | Tensor | None = None
) -> Iterator[Batch]:
    """Gives the batch to run inside the scope, on the model's device: that of `batch` without the tokens `removed`.

    Both are looked at on the CPU: where they come from there, the model's device is not waited for.
    `removed` [B, T] is bool; what it says of padding does not matter. Of an encoder-decoder T are the encoder's tokens;
    where it is [B, T + U], the decoder's follow, which can only be zeroed. `way` is `zero`, `mask` (by the token
    `instead`), `resample` (by the tokens `instead` [B, T]) or `delete`, after which rows are padded on the right and a
    prediction is read at the last token that remains up to its position. Raises UserError for a way that the model does
    not know, a prediction slot of a masked model among the removed tokens, and a deletion that leaves nothing to read
    the prediction from.
    """
    check_way(view, way, instead)
    if view.kind.slot and removed.to("cpu").gather(1, batch.position.to("cpu")[:, None]).any():
        raise UserError("the slot where a masked model predicts cannot be removed")
    if way == DELETE:
        yield _without(batch.to("cpu"), removed.to("cpu")).to(view.device)
        return
    batch, removed = batch.to(view.device), to_device(removed, view.device)
    if way == RESAMPLE and instead is None:
        raise UserError(f"the perturbation {RESAMPLE!r} needs replacements for the removed tokens")
    if instead is not None and way in (MASK, RESAMPLE):
        length = batch.input_ids.shape[1]
        gone = removed[:, :length] & (batch.attention_mask > 0)
        tokens = to_device(instead, view.device) if isinstance(instead, Tensor) else instead
        yield replace(batch, input_ids=torch.where(gone, tokens, batch.input_ids))
        return
    with ExitStack() as undo:
        for embedding, columns in view.embeddings_of(batch):
            of_embedding = removed[:, columns]
            if of_embedding.shape[1]:
                hook = partial(_zero_rows, removed=of_embedding)
                undo.enter_context(embedding.register_forward_hook(hook))
        yield batch


def _zero_rows(_: nn.Module, args: tuple[Any, ...], embedded: Tensor, *, removed: Tensor) -> Tensor:
    return embedded.masked_fill(removed.to(embedded.device)[..., None], 0)  # [B, T, D]


def _without(batch: Batch, removed: Tensor) -> Batch:
    kept = (batch.attention_mask > 0) & ~removed[:, : batch.input_ids.shape[1]]  # [B, T]
    in_text, remaining = batch.decoder_input_ids is None, kept.cumsum(-1)

    def moved(positions: Tensor) -> Tensor:
        return remaining.gather(1, positions) - 1 if in_text else positions

    if ((moved(batch.read_positions) < 0).any(-1) | (kept.sum(-1) == 0)).any():
        raise UserError("a deletion must leave a token to read the prediction from")
    count = kept.sum(-1, keepdim=True)
    width = int(count.max())
    first = torch.argsort(~kept, dim=-1, stable=True)[:, :width]  # kept tokens in their order
    inside = torch.arange(width, device=count.device) < count
    kept_first = batch.over_tokens(lambda of_tokens: of_tokens.gather(1, first), moved)
    return replace(kept_first, attention_mask=inside.to(batch.attention_mask.dtype))
