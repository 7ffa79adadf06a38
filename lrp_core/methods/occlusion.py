"""Occlusion: the drop of the prediction when a token is removed (Zeiler & Fergus 2014)."""

from __future__ import annotations

import torch
from torch import Tensor

from closelook.lrp_core.device.transfer import to_device
from closelook.lrp_core.interventions.tokens import tokens_removed
from closelook.lrp_core.operations.forward import explained_numbers
from closelook.lrp_core.records.explained import explanations_of, relevance_of
from closelook.lrp_core.records.kinds import DELETE, MASK
from closelook.lrp_core.records.types import Batch, Relevance, Requests, Results, UserError
from closelook.lrp_core.records.variants import TOKEN_BUDGET, pieces, rows_of
from closelook.lrp_core.views.view import ModelView


@torch.no_grad()
def explain_many(
    view: ModelView, batch: Batch, requests: Requests, *, how: str, token_budget: int = TOKEN_BUDGET
) -> Results:
    """Relevance of a token is the explained number minus its value without the token.

    `how` removes the token: ZERO zeroes its embedding (position and segment stay), MASK puts the mask token in its
    place, DELETE deletes it, so that later tokens move up and the readout position is the last token that remains. The
    mask token of a masked model is never removed and has 0; with DELETE so have a sample's only token and what a
    decoder has read.
    """
    on_host, batch = batch.to("cpu"), batch.to(view.device)
    explanations = explanations_of(requests)
    logits, whole = explained_numbers(view, batch, explanations)
    drops = {explanation: logits.new_zeros(batch.every_id.shape) for explanation in explanations}
    mask_id = _mask_id(view, on_host) if how == MASK else None
    taken, length = _taken(view, on_host, how), batch.every_id.shape[1]
    for part in pieces(range(len(taken)), length, token_budget):
        samples, positions = taken[part.start : part.stop].unbind(1)
        removed = torch.nn.functional.one_hot(positions, length).bool()
        with tokens_removed(view, rows_of(on_host, samples), removed, how, mask_id) as rows:
            _, explained = explained_numbers(view, rows, explanations)
        samples, positions = to_device(samples, logits.device), to_device(positions, logits.device)
        for explanation, numbers in explained.items():
            drops[explanation][samples, positions] = whole[explanation][samples] - numbers
    results: dict[str, Relevance] = {}
    for explanation, explained_number in whole.items():
        parts = batch.parted(drops[explanation].to(batch.input_ids.device))
        results[explanation] = relevance_of(logits=logits, explained=explained_number, conserves=False, **parts)
    return {request: results[request.explanation] for request in requests}


def _taken(view: ModelView, batch: Batch, how: str) -> Tensor:
    """Indices (sample, token) [R, 2] of the tokens to remove, one at a time; the batch is on the CPU."""
    removable = view.visible(batch)
    positions = torch.arange(removable.shape[1])
    if view.kind.slot:
        removable = removable & (positions != batch.position[:, None])
    if how == DELETE:
        removable = removable & (batch.attention_mask.sum(-1, keepdim=True) > 1)
        removable = removable & (positions < batch.attention_mask.shape[1])
    return removable.nonzero()


def _mask_id(view: ModelView, batch: Batch) -> int | None:
    """The id at the readout position of a masked model, which is its mask token; None for other models."""
    if not view.kind.slot or not len(batch):
        return None
    predicted = batch.input_ids.gather(1, batch.position[:, None])
    if (predicted != predicted[0]).any():
        differ = "the samples hold different tokens where the model predicts"
        raise UserError(f"occlusion: {differ}: put the model's mask token there")
    return int(predicted[0])
