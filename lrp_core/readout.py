"""What a prediction says: what is explained of it, and of the whole vocabulary, where it is read and nowhere else."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from lrp_core.explained import explained_by
from lrp_core.guard import undisturbed
from lrp_core.types import Batch, UserError
from lrp_core.view import ModelView

_ROWS, _TOKENS = 1024, 8192  # logits held at once; fixed, so that a row's neighbours change its sums little


def explained_numbers(
    view: ModelView, hidden: Tensor, batch: Batch, explanations: Iterable[str]
) -> tuple[Tensor, dict[str, Tensor]]:
    """Logits [B, 2] of target and foil ([B, 1] without foils) and the explained number [B] of each explanation.

    `hidden` [B, T, D] is the last hidden state. Raises what `Explained.of` raises, and UserError for the
    probability of a score.
    """
    wanted = [explained_by(name) for name in dict.fromkeys(explanations)]
    if view.predicts_score and not all(one.linear for one in wanted):
        raise UserError("a score has no probability: explain it by 'target'")
    state = view.prediction(hidden, batch)
    logits = view.unembed(state, batch)
    total = None if all(one.linear for one in wanted) else over_vocabulary(view, state)[0].to(logits.device)
    return logits, {one.name: one.of(logits, total) for one in wanted}


def with_predictions(view: ModelView, rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """View `rows`, those without a target with the token that the model itself predicts (its `target_id`).

    Each of those runs alone: where two logits are nearly equal, neighbours in a batch would decide between them, and
    whoever asks again, in other batches, must find the same token. Raises whatever the model raises.
    """

    def predicted_in(row: Mapping[str, Any]) -> int:
        return int(predicted(view, Batch.collate([{**row, "target_id": 0, "foil_id": None}], pad_id=0)))

    return [row if row["target_id"] is not None else {**row, "target_id": predicted_in(row)} for row in rows]


@torch.inference_mode()
def predicted(view: ModelView, batch: Batch) -> Tensor:
    """The token with the largest logit where the prediction is read, [B]. The targets of `batch` play no part."""
    batch = batch.to(view.device)
    with undisturbed(view):
        return over_vocabulary(view, view.prediction(view.hidden(batch), batch))[1]


def over_vocabulary(view: ModelView, state: Tensor) -> tuple[Tensor, Tensor]:
    """Log of the summed exponentials of all logits, and the token with the largest logit, both [B].

    `state` [B, D] is what the unembedding reads (`ModelView.prediction`). Sums are taken in float32 at least; logits
    of a part of the vocabulary are held at a time. Of several largest logits the first counts.
    """
    parts = [_over_vocabulary(view, rows) for rows in state.split(_ROWS)]
    total, largest = zip(*parts, strict=True)
    return torch.cat(total), torch.cat(largest)


def _over_vocabulary(view: ModelView, state: Tensor) -> tuple[Tensor, Tensor]:
    total = best = largest = None
    for start, logits in view.all_logits(state, _TOKENS):
        if total is None or best is None or largest is None:
            total = logits.new_full((len(logits),), -torch.inf)
            best, largest = total.clone(), torch.zeros(len(logits), dtype=torch.int64, device=logits.device)
        total = torch.logaddexp(total, logits.logsumexp(-1))
        top, token = logits.max(-1)
        largest = torch.where(top > best, token + start, largest)
        best = torch.maximum(best, top)
    assert total is not None
    assert largest is not None
    return total, largest
