"""The label or token that a model predicts, the runner-up, and how probable they are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lrp_core.device.transfer import to_host
from lrp_core.readers.readout import TOKENS, label_logits, over_vocabulary
from lrp_core.records.types import Batch
from lrp_core.views.guard import ROUNDING, undisturbed
from lrp_core.views.view import ModelView

Row = Mapping[str, Any]  # of the view schema


@dataclass(frozen=True)
class Decision:
    """The output of a model's softmax for one row: its best labels or tokens, and the target's."""

    ids: tuple[int, ...]  # the most probable, and the runner-up where there is one
    log_probs: tuple[float, ...]  # of these
    log_prob: float  # of the row's target, where it has one; else of the most probable


def with_predictions(view: ModelView, rows: Sequence[Row]) -> list[Row]:
    """View `rows`, those without a target with the token or label that the model itself predicts.

    That is their `target_id`, and `predicted_id` says so; of a label, the `foil_id` is the runner-up. A score is its
    own target. Where logits are nearly equal, neighbours in a batch would decide between them, and whoever asks again,
    in other batches, must find the same token: such rows run alone. Raises whatever the model raises.
    """
    asked = [at for at, row in enumerate(rows) if row["target_id"] is None]
    completed = list(rows)
    if view.predicts_score:
        for at in asked:
            completed[at] = {**rows[at], "target_id": 0}
        return completed
    for at, decision in zip(asked, decisions(view, [rows[at] for at in asked], tokens=1), strict=True):
        completed[at] = decided(view, rows[at], decision)
    return completed


def decided(view: ModelView, row: Row, decision: Decision) -> Row:
    """The row with the decision as its target, where it has none; of a label, with the runner-up as its foil."""
    if row["target_id"] is not None:
        return row
    best, *others = decision.ids
    foil = {"foil_id": others[0]} if others and view.kind.labels else {}
    return {**row, **foil, "target_id": best, "predicted_id": best}


def decisions(view: ModelView, rows: Sequence[Row], tokens: int = 2) -> list[Decision]:
    """The decision of the model on each row: its best label and the runner-up, or its best `tokens`.

    Each is the decision in a batch of the row alone. A regressor has none: an empty list. Raises the model's errors.
    """
    if view.predicts_score:
        return []
    best = min(2, view.n_targets) if view.kind.labels else tokens
    rows = [{**row, "target_id": -1 if row["target_id"] is None else row["target_id"], "foil_id": None} for row in rows]
    told: dict[int, Decision] = {}
    if len(rows) > 1 and view.dtype in (torch.float32, torch.float64) and view.family.experts is None:
        told = {at: decision for at, decision, sure in _of_parts(view, rows, list(_alike(rows)), best) if sure}
    alone = [[at] for at in range(len(rows)) if at not in told]
    told |= {at: decision for at, decision, _ in _of_parts(view, rows, alone, best)}
    return [told[at] for at in range(len(rows))]


def _of_parts(
    view: ModelView, rows: Sequence[Row], parts: Sequence[Sequence[int]], best: int
) -> Iterator[tuple[int, Decision, bool]]:
    """The row's index, its decision and whether neighbours change it by no rounding; each part is a batch."""
    ranked = [_ranked(view, [rows[at] for at in part], best) for part in parts]
    on_host = iter(to_host([tensor for of_part in ranked for tensor in of_part]))
    for part, ids, log_probs, log_prob, sure in zip(parts, on_host, on_host, on_host, on_host, strict=True):
        lists = (tensor.tolist() for tensor in (ids, log_probs, log_prob, sure))
        for at, best_ids, of_best, of_target, is_sure in zip(part, *lists, strict=True):
            own = of_best[0] if rows[at]["target_id"] < 0 else of_target
            yield at, Decision(tuple(best_ids), tuple(of_best), own), is_sure


def _alike(rows: Sequence[Row]) -> Iterator[list[int]]:
    """Rows, by index, that can share a batch: neighbours by length, of at most TOKENS with padding."""
    optional = ("token_type_ids", "decoder_input_ids", "pixel_values")

    def fields(at: int) -> list[bool]:
        return [rows[at].get(name) is None for name in optional]

    def length(at: int) -> int:
        return len(rows[at]["input_ids"])

    part: list[int] = []
    for at in sorted(range(len(rows)), key=lambda at: (fields(at), length(at))):
        if part and (fields(at) != fields(part[0]) or (len(part) + 1) * length(at) > TOKENS):
            yield part
            part = []
        part.append(at)
    if part:
        yield part


@torch.inference_mode()
def _ranked(view: ModelView, rows: Sequence[Row], best: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The `best` labels or tokens [B, best], the largest logit first, their log-probabilities [B, best], that of the
    targets [B], and whether no rounding changes the order [B].

    Of equal logits the first counts, in a batch of one.
    """
    batch = Batch.collate([{**row, "target_id": max(0, row["target_id"])} for row in rows], pad_id=0).to(view.device)
    largest: list[tuple[Tensor, Tensor]] = []
    sums = []
    with undisturbed(view):
        state = view.prediction(view.hidden(batch), batch)
        for start, logits in view.all_logits(state, TOKENS):
            values, ids = logits.topk(min(best + 1, logits.shape[1]))
            largest.append((values, ids + start))
            sums.append(logits.logsumexp(-1))
        target = view.unembed(state, batch)[:, 0]
        values, ids = (torch.cat(parts, -1) for parts in zip(*largest, strict=True))
        values, order = values.topk(min(best + 1, values.shape[1]))
        ids = ids.gather(1, order)[:, :best] if len(rows) > 1 else _first_of_equal(view, state, best)
    total = torch.stack(sums).logsumexp(0)
    rounding = ROUNDING[str(view.dtype).removeprefix("torch.")] * values.abs().amax(-1).clamp(min=1)  # of one logit
    sure = (values[:, :-1] - values[:, 1:] > 2 * rounding[:, None]).all(-1)
    return ids, values[:, :best] - total[:, None], target.to(total.device) - total, sure


def _first_of_equal(view: ModelView, state: Tensor, best: int) -> Tensor:
    """The `best` labels or tokens [B, best] of what the unembedding reads; of equal logits the first."""
    if best == 1:
        return over_vocabulary(view, state)[1][:, None]
    return label_logits(view, state).sort(dim=-1, descending=True, stable=True).indices[:, :best]


def against_strongest(view: ModelView, row: Row) -> Row:
    """A view row whose `foil_id` is the strongest label other than its `target_id`."""
    strongest = predicted(view, Batch.collate([{**row, "foil_id": None}], pad_id=0), 2)[0].tolist()
    return {**row, "foil_id": next(label for label in strongest if label != row["target_id"])}


@torch.inference_mode()
def predicted(view: ModelView, batch: Batch, best: int = 1) -> Tensor:
    """The tokens or labels with the `best` largest logits where the prediction is read, [B, best], the largest first.

    Of labels there may be several. The targets of `batch` play no part. Of equal logits the first counts.
    """
    batch = batch.to(view.device)
    with undisturbed(view):
        return _first_of_equal(view, view.prediction(view.hidden(batch), batch), best)
