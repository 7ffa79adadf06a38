"""Numbers at the readout position: the explained numbers, and sums over the whole vocabulary."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from closelook.lrp_core.records.explained import Explained, explained_by
from closelook.lrp_core.records.types import Batch, UserError
from closelook.lrp_core.views.encoder_decoder import EncoderDecoderView
from closelook.lrp_core.views.view import ModelView, weighted

#: The most rows and tokens whose logits are held at once. Constants, so that a row's sums depend little on the batch.
_ROWS, TOKENS = 1024, 8192


def explained_numbers(
    view: ModelView, hidden: Tensor, batch: Batch, explanations: Iterable[str]
) -> tuple[Tensor, dict[str, Tensor]]:
    """Logits [B, 2] of target and foil ([B, 1] without foils), and the explained number [B] of each of `explanations`.

    `hidden` [B, T, D] is the last hidden state. Raises what `Explained.of` raises, and UserError for the
    log-probability of a score.
    """
    choices = [explained_by(name) for name in dict.fromkeys(explanations)]
    if view.predicts_score and not all(choice.linear for choice in choices):
        raise UserError("a score has no probability: explain it by 'target'")
    state = view.prediction(hidden, batch)
    if batch.span_ids is not None:
        return _of_spans(view, state, batch, choices)
    logits = view.unembed(state, batch)
    if all(choice.linear for choice in choices):
        return logits, {choice.name: choice.of(logits) for choice in choices}
    others, _ = over_vocabulary(view, state, batch.target_ids)
    return logits, {choice.name: choice.of(logits, others.to(logits.device)) for choice in choices}


def _of_spans(
    view: ModelView, state: Tensor, batch: Batch, choices: Sequence[Explained]
) -> tuple[Tensor, dict[str, Tensor]]:
    """As `explained_numbers`, for spans: the weighted sum over a span's tokens of each token's number."""
    assert batch.span_ids is not None
    logits = view.of_span(state, batch)  # [B, N, 1]
    others = None
    if not all(choice.linear for choice in choices):
        others, _ = over_vocabulary(view, state.flatten(0, 1), batch.span_ids.flatten())
        others = others.to(logits.device)
    numbers = {choice.name: choice.of(logits.flatten(0, 1), others).view(batch.span_ids.shape) for choice in choices}
    return weighted(logits, batch), {name: weighted(number, batch) for name, number in numbers.items()}


def rows_for(view: ModelView, rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """View `rows` as the model takes them.

    Token types are dropped if the model has no segments to tell apart. For an encoder-decoder the tokens that the
    decoder begins with are put before `decoder_input_ids`; raises UserError if the model names no start token.
    """
    if isinstance(view, EncoderDecoderView):
        rows = [_started(row, view.start_ids) for row in rows]
    if view.n_segments > 1:
        return list(rows)
    return [{**row, "token_type_ids": None} for row in rows]


def _started(row: Mapping[str, Any], start: Sequence[int]) -> dict[str, Any]:
    """The row of an encoder-decoder with the tokens `start` before the decoder's; its position counts one of them."""
    ids = [*start, *(row.get("decoder_input_ids") or ())]
    return {**row, "decoder_input_ids": ids, "position": row["position"] + len(start) - 1}


def label_logits(view: ModelView, state: Tensor) -> Tensor:
    """Logits of all labels [B, C] for `state` [B, D], the input of the unembedding; in float32 at least."""
    return torch.cat([logits for _, logits in view.all_logits(state, TOKENS)], -1)


def over_vocabulary(view: ModelView, state: Tensor, apart: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The logsumexp over the vocabulary, and the token with the largest logit, both [B].

    `state` [B, D] is the input of the unembedding (`ModelView.prediction`). The token `apart` [B] of each row is left
    out, if given. Sums are in float32 at least. Logits are computed for a part of the vocabulary at a time. Of equal
    logits the lower id counts.
    """
    rows = state.split(_ROWS)
    left_out = [None] * len(rows) if apart is None else apart.split(_ROWS)
    parts = [_over_vocabulary(view, *part) for part in zip(rows, left_out, strict=True)]
    total, largest = zip(*parts, strict=True)
    return torch.cat(total), torch.cat(largest)


def _over_vocabulary(view: ModelView, state: Tensor, apart: Tensor | None) -> tuple[Tensor, Tensor]:
    """`over_vocabulary` of at most _ROWS rows."""
    total = best = largest = None
    for start, logits in view.all_logits(state, TOKENS):
        if total is None or best is None or largest is None:
            total = logits.new_full((len(logits),), -torch.inf)
            best, largest = total.clone(), torch.zeros(len(logits), dtype=torch.int64, device=logits.device)
        if apart is not None:
            ids = torch.arange(start, start + logits.shape[1], device=logits.device)
            logits = logits.masked_fill(ids == apart.to(logits.device)[:, None], torch.finfo(logits.dtype).min)
        total = torch.logaddexp(total, logits.logsumexp(-1))
        top, token = logits.max(-1)
        largest = torch.where(top > best, token + start, largest)
        best = torch.maximum(best, top)
    assert total is not None
    assert largest is not None
    return total, largest
