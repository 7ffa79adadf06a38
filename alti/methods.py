"""The functions of ALTI, ALTI-Logit and GlobEnc, which compute groups of samples within a memory budget.

Batches are padded on the right. A group of samples lacks the padding that other samples of the batch need.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from closelook.alti import planner
from closelook.alti.logit import LogitContributions, decompose
from closelook.alti.planner import MemoryNeeds, MemoryPlan
from closelook.alti.post_norm import ALTI, GLOBENC, RAW_GLOBENC, Maps, mixing
from closelook.alti.records import METHODS
from closelook.lrp_core.device.memory import is_out_of_memory
from closelook.lrp_core.device.transfer import to_device
from closelook.lrp_core.records.explained import explained_by, explanations_of, relevance_of, without_sum
from closelook.lrp_core.records.types import Batch, Relevance, Requests, Results, UserError
from closelook.lrp_core.records.variants import rows_of
from closelook.lrp_core.views.view import ModelView

log = logging.getLogger(__name__)

_OVER_TOKENS = ("tokens", "attended", "attention", "layers")  # results whose last axis is tokens
_Part = tuple[list[int], MemoryPlan, dict[str, Tensor]]  # rows of a batch, their plan, and their results by name


@dataclass(frozen=True)
class AltiRelevance(Relevance):
    """A Relevance with all contributions to the logit, and the plans by which it was computed."""

    contributions: LogitContributions | None = None  # of alti_logit
    plans: tuple[MemoryPlan, ...] = ()  # one for each group of samples, in the order of computation


def explain_many(
    view: ModelView,
    batch: Batch,
    requests: Requests,
    *,
    heads: bool = False,
    layers: bool = False,
    initial: bool = True,
    byte_budget: int | None = None,
) -> Results:
    """ALTI for post-norm models, ALTI-Logit for pre-norm models: one forward pass for each group of samples.

    A group has samples of similar length, without the padding that others need, and fits `byte_budget`, the bytes
    besides the weights (None: what is free on the device). If memory runs out, the group is halved, then its chunk. For
    alti, `layers` gives the readout position's row of each layer's map. For alti_logit, `heads` gives relevance of
    heads, and `initial` counts what the readout position's embeddings add to the logit as its relevance.
    Raises UnsupportedMethod for requests of methods of the other norm order, and UserError for a contrastive request
    without foils, texts that are not padded on the right, or a budget that is too small for one sample.
    """
    return _explain(view, batch, requests, ALTI, byte_budget, heads=heads, layers=layers, initial=initial)


def globenc(
    view: ModelView,
    batch: Batch,
    requests: Requests,
    *,
    normalise: bool = True,
    layers: bool = False,
    byte_budget: int | None = None,
) -> Results:
    """GlobEnc of post-norm models (Modarressi et al. 2022): as ALTI in `explain_many`, with maps of norms.

    Without `normalise`, rows of maps keep their norms and do not sum to 1. `layers` gives the readout position's row of
    each layer's map. Groups are planned as for ALTI, which needs more memory. Raises as `explain_many` does.
    """
    maps = GLOBENC if normalise else RAW_GLOBENC
    return _explain(view, batch, requests, maps, byte_budget, layers=layers)


@torch.no_grad()
def _explain(
    view: ModelView,
    batch: Batch,
    requests: Requests,
    maps: Maps,
    byte_budget: int | None,
    *,
    heads: bool = False,
    layers: bool = False,
    initial: bool = True,
) -> Results:
    """The result of `explain_many` and `globenc`; `maps` are those of post-norm models."""
    for request in requests:
        METHODS[request.method].require(view.family)
    on_host, explanations = batch.to("cpu"), explanations_of(requests)
    if (on_host.attention_mask.diff(dim=-1) > 0).any():  # padding behind a text is cut off
        raise UserError("pad texts on the right")
    budget = planner.free_bytes(view.device) if byte_budget is None else byte_budget
    lengths = on_host.attention_mask.sum(-1).clamp_min(1).tolist()  # 1 for a row that is all padding
    parts: list[_Part] = []
    for rows, plan in planner.cut(MemoryNeeds.of(view), lengths, budget):
        parts += _within_memory(view, on_host, rows, maps, explanations, plan)
    plans = tuple(plan for _, plan, _ in parts)
    mask = to_device(batch.attention_mask, view.device)
    whole = {name: _assemble(mask, parts, name) for name in parts[0][2]}
    logits = whole.pop("logits")
    if view.family.norm_order == "post":
        relevance = without_sum(whole["tokens"], logits, layers=whole["layers"] if layers else None)
        return dict.fromkeys(requests, AltiRelevance(**vars(relevance), plans=plans))
    every = LogitContributions(**whole)
    results: Results = {}
    for request in requests:
        parts_of_logit = every.of(explanations.index(request.explanation))
        tokens = parts_of_logit.tokens if initial else parts_of_logit.attended  # the residual lacks `initial`, too
        explained = explained_by(request.explanation).of(logits)
        relevance = relevance_of(tokens, logits, explained, heads=parts_of_logit.pooled if heads else None)
        results[request] = AltiRelevance(**vars(relevance), contributions=parts_of_logit, plans=plans)
    return results


def _within_memory(
    view: ModelView, batch: Batch, rows: list[int], maps: Maps, explanations: Sequence[str], plan: MemoryPlan
) -> Iterator[_Part]:
    """Yield the results of some rows; if memory runs out, of halves of them, then of single rows in smaller chunks.

    Raises the error if memory runs out for a single row in the smallest chunk.
    """
    some = rows_of(batch, torch.tensor(rows))
    some = some.over_tokens(lambda of_tokens: of_tokens[:, : plan.length], lambda positions: positions)
    try:
        yield rows, plan, _compute(view, some.to(view.device), maps, explanations, plan)
        return
    except Exception as error:
        if not is_out_of_memory(error) or plan.smallest:
            raise
        log.warning("out of memory with %s: halved", plan)
    if view.device.type == "cuda":
        torch.cuda.empty_cache()
    middle = len(rows) // 2
    for half in (rows[:middle], rows[middle:]) if middle else (rows,):
        yield from _within_memory(view, batch, half, maps, explanations, plan.halved(len(half)))


def _compute(
    view: ModelView, batch: Batch, maps: Maps, explanations: Sequence[str], plan: MemoryPlan
) -> dict[str, Tensor]:
    """The results [b, ...] of one group by name, on the model's device."""
    if view.family.norm_order == "post":
        logits, tokens, rows = mixing(view, batch, plan.chunk, maps)
        numbers = {"logits": logits, "tokens": tokens, "layers": rows}
    else:
        logits, contributions = decompose(view, batch, explanations, plan.chunk)
        numbers = {"logits": logits, **vars(contributions)}
    return {name: value.to(view.device) for name, value in numbers.items()}  # layers may live on several devices


def _assemble(mask: Tensor, parts: Sequence[_Part], name: str) -> Tensor:
    """The result of that name for all rows of a batch with this attention mask [B, T]; 0 on padding."""
    first = parts[0][2][name]
    over_tokens = name in _OVER_TOKENS
    whole = first.new_zeros(len(mask), *first.shape[1:-1], mask.shape[1] if over_tokens else first.shape[-1])
    for rows, _, numbers in parts:
        values = numbers[name]
        if over_tokens:
            values = torch.nn.functional.pad(values, (0, mask.shape[1] - values.shape[-1]))
        whole[to_device(torch.tensor(rows), whole.device)] = values
    if over_tokens:
        whole.masked_fill_(mask.view(len(mask), *[1] * (whole.dim() - 2), -1) == 0, 0)
    return whole
