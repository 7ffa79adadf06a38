"""The labels or tokens that a model predicts, and their log-probabilities."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from closelook.lrp_core.device.transfer import to_host
from closelook.lrp_core.records.types import Batch
from closelook.lrp_core.views.guard import ROUNDING, undisturbed
from closelook.lrp_core.views.view import ModelView

Row = Mapping[str, Any]  # of the view schema
_TOKENS = 8192  # of a batch, at most


@dataclass(frozen=True)
class Decision:
    """A model's prediction for one row: the most probable labels or tokens, and the log-probability of the target."""

    ids: tuple[int, ...]  # the most probable first
    log_probs: tuple[float, ...]  # the log-probabilities of `ids`
    log_prob: float  # of the row's target if it has one, else of the most probable label or token


def with_predictions(view: ModelView, rows: Sequence[Row]) -> list[Row]:
    """View `rows` in which rows without a target get the token or label that the model predicts.

    Such a row gets this prediction as `target_id` and `predicted_id`; for a label, the runner-up becomes `foil_id`. A
    regressor's rows get target 0. Rows with nearly equal logits run alone, so that rounding, which depends on the
    batch, does not decide between them. Raises whatever the model raises.
    """
    undecided = [at for at, row in enumerate(rows) if row["target_id"] is None]
    completed = list(rows)
    if view.predicts_score:
        for at in undecided:
            completed[at] = {**rows[at], "target_id": 0}
        return completed
    for at, decision in zip(undecided, decisions(view, [rows[at] for at in undecided], tokens=1), strict=True):
        completed[at] = decided(view, rows[at], decision)
    return completed


def decided(view: ModelView, row: Row, decision: Decision) -> Row:
    """The row with the decision as its target, and for a label the runner-up as its foil, unless it has a target."""
    if row["target_id"] is not None:
        return row
    best, *others = decision.ids
    foil = {"foil_id": others[0]} if others and view.kind.labels else {}
    return {**row, **foil, "target_id": best, "predicted_id": best}


def decisions(view: ModelView, rows: Sequence[Row], tokens: int = 2) -> list[Decision]:
    """The model's decision on each row: its two best labels, or its best `tokens` tokens.

    Each is as if the row ran alone. Tokens that the model's own `generate` never gives are left out, those that it does
    not begin with too. Returns an empty list for a regressor. Raises the model's errors.
    """
    if view.predicts_score:
        return []
    wanted = min(2, view.n_targets) if view.kind.labels else tokens
    never = suppressed(view, first=True)
    best = min(wanted + len(never), view.n_targets)
    rows = [{**row, "target_id": -1 if row["target_id"] is None else row["target_id"], "foil_id": None} for row in rows]
    known: dict[int, Decision] = {}
    if len(rows) > 1 and view.dtype in (torch.float32, torch.float64) and view.family.experts is None:
        known = {at: decision for at, decision, sure in _of_parts(view, rows, list(_alike(rows)), best) if sure}
    singles = [[at] for at in range(len(rows)) if at not in known]
    known |= {at: decision for at, decision, _ in _of_parts(view, rows, singles, best)}
    return [_allowed(known[at], never, wanted, rows[at]["target_id"] >= 0) for at in range(len(rows))]


def suppressed(view: ModelView, first: bool) -> frozenset[int]:
    """The tokens that the model's own `generate` never gives, with `first` as the first of its tokens."""
    settings = None if view.kind.labels or view.kind.slot else view.model.generation_config
    if settings is None:  # a model that does not generate
        return frozenset()
    at_first = settings.begin_suppress_tokens if first else None
    return frozenset([*(settings.suppress_tokens or ()), *(at_first or ())])


def _allowed(decision: Decision, never: Collection[int], wanted: int, has_target: bool) -> Decision:
    """The decision with the `wanted` most probable labels or tokens that are not among `never`."""
    pairs = zip(decision.ids, decision.log_probs, strict=True)
    ids, log_probs = zip(*[pair for pair in pairs if pair[0] not in never][:wanted], strict=True)
    return Decision(ids, log_probs, decision.log_prob if has_target else log_probs[0])


def _of_parts(
    view: ModelView, rows: Sequence[Row], parts: Sequence[Sequence[int]], best: int
) -> Iterator[tuple[int, Decision, bool]]:
    """Yield (row index, decision, sure), running each of `parts` (lists of row indices) as a batch."""
    ranked = [_ranked(view, [rows[at] for at in part], best) for part in parts]
    on_host = iter(to_host([tensor for of_part in ranked for tensor in of_part]))
    for part, ids, log_probs, log_prob, sure in zip(parts, on_host, on_host, on_host, on_host, strict=True):
        lists = (tensor.tolist() for tensor in (ids, log_probs, log_prob, sure))
        for at, best_ids, of_best, of_target, is_sure in zip(part, *lists, strict=True):
            target_log_prob = of_best[0] if rows[at]["target_id"] < 0 else of_target
            yield at, Decision(tuple(best_ids), tuple(of_best), target_log_prob), is_sure


def _alike(rows: Sequence[Row]) -> Iterator[list[int]]:
    """Yield lists of row indices that can share a batch: with the same optional fields, and of similar length."""
    optional = ("token_type_ids", "decoder_input_ids", "pixel_values")

    def fields(at: int) -> list[bool]:
        return [rows[at].get(name) is None for name in optional]

    def length(at: int) -> int:
        return len(rows[at]["input_ids"])

    part: list[int] = []
    for at in sorted(range(len(rows)), key=lambda at: (fields(at), length(at))):
        if part and (fields(at) != fields(part[0]) or (len(part) + 1) * length(at) > _TOKENS):
            yield part
            part = []
        part.append(at)
    if part:
        yield part


@torch.inference_mode()
def _ranked(view: ModelView, rows: Sequence[Row], best: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The `best` labels or tokens of each row, the largest logit first, as four tensors."""
    batch = Batch.collate([{**row, "target_id": max(0, row["target_id"])} for row in rows], pad_id=0).to(view.device)
    with undisturbed(view):
        logits = view.all_logits(batch)[:, -1]
        values, ids = logits.topk(min(best + 1, logits.shape[1]))
        if len(rows) == 1:
            ids = _first_of_equal(logits, best)
    total = logits.logsumexp(-1)
    target = logits.gather(1, batch.target_ids[:, None].to(logits.device))[:, 0]
    # [B] how far rounding may move a logit
    rounding = ROUNDING[str(view.dtype).removeprefix("torch.")] * values.abs().amax(-1).clamp(min=1)
    sure = (values[:, :-1] - values[:, 1:] > 2 * rounding[:, None]).all(-1)
    return ids[:, :best], values[:, :best] - total[:, None], target - total, sure


def _first_of_equal(logits: Tensor, best: int) -> Tensor:
    """The `best` labels or tokens [B, best] of `logits` [B, V], the largest first; of equals the lower id."""
    return logits.sort(dim=-1, descending=True, stable=True).indices[:, :best]


def against_strongest(view: ModelView, row: Row) -> Row:
    """The view row of a classifier with the label of largest logit other than its target as `foil_id`."""
    strongest = predicted(view, Batch.collate([{**row, "foil_id": None}], pad_id=0), 2)[0].tolist()
    return {**row, "foil_id": next(label for label in strongest if label != row["target_id"])}


@torch.inference_mode()
def predicted(view: ModelView, batch: Batch, best: int = 1) -> Tensor:
    """The ids of the tokens or labels with the largest logits at the readout position, [B, best], the largest first."""
    with undisturbed(view):
        return _first_of_equal(view.all_logits(batch)[:, -1], best)


def rows_for(view: ModelView, rows: Sequence[Row]) -> list[Row]:
    """View `rows` as the model takes them."""
    if view.kind.decoder:
        rows = [_started(row, view.start_ids) for row in rows]
    if view.n_segments > 1:
        return list(rows)
    return [{**row, "token_type_ids": None} for row in rows]


def _started(row: Row, start: Sequence[int]) -> dict[str, Any]:
    """The row of an encoder-decoder with the tokens `start` before the decoder's; its position counts one of them."""
    ids = [*start, *(row.get("decoder_input_ids") or ())]
    return {**row, "decoder_input_ids": ids, "position": row["position"] + len(start) - 1}
