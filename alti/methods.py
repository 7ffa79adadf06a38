"""The functions of ALTI, ALTI-Logit and GlobEnc, which compute groups of samples within a memory budget.

A group of samples lacks the padding that other samples of the batch need; its results are put back into the batch.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

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
from closelook.lrp_core.records.types import Batch, Relevance, Requests, Results, UnsupportedMethod
from closelook.lrp_core.records.variants import rows_of
from closelook.lrp_core.views.view import ModelView

log = logging.getLogger(__name__)

_OVER_TOKENS = ("tokens", "attended", "attention", "layers")  # results whose last axis is tokens


@dataclass(frozen=True)
class Group:
    """Some samples of a batch [B, T] without masked tokens, padded on the right to the longest of them [b, t]."""

    batch: Batch
    rows: Tensor  # [b], the samples' rows in the whole batch
    columns: Tensor  # [b, t], the column of each token in the whole batch
    real: Tensor  # [b, t], 1 for tokens, 0 for padding

    @classmethod
    def of(cls, whole: Batch, rows: list[int]) -> Group:
        """The group of these rows of `whole`, which must be on the CPU: on a GPU, `of` would wait for the device."""
        picked = torch.tensor(rows)
        mask = whole.attention_mask[picked]
        length = lengths(whole)[picked]
        offset = torch.arange(int(length.max()))
        # sorted stably by the mask, tokens come first, in their order
        columns = mask.argsort(dim=-1, descending=True, stable=True)[:, : len(offset)]
        slots = (mask.cumsum(-1) - 1).clamp_min(0)  # [b, T], the new column of each token
        chosen = rows_of(whole, picked)
        batch = chosen.over_tokens(lambda of_tokens: of_tokens.gather(1, columns), lambda at: slots.gather(1, at))
        batch = replace(batch, attention_mask=(offset < length[:, None]).to(mask.dtype))
        return cls(batch, picked, columns, mask.gather(1, columns))

    def to(self, device: torch.device) -> Group:
        """The group with all its tensors on a device."""
        places = (to_device(of_tokens, device) for of_tokens in (self.rows, self.columns, self.real))
        return Group(self.batch.to(device), *places)

    def halves(self) -> list[Group]:
        """Two groups with half of the samples each."""
        middle = len(self.batch) // 2
        return [self._some(slice(None, middle)), self._some(slice(middle, None))]

    def put(self, numbers: Tensor, whole: Tensor, over_tokens: bool) -> None:
        """Write the group's `numbers` [b, ...] into the rows of `whole` [B, ...] from which its samples were taken.

        With `over_tokens` the last axis is tokens, t of `numbers` and T of `whole`: each number goes to the column of
        its token, and all other columns of these rows become 0.
        """
        if not over_tokens:
            whole[self.rows] = numbers
            return
        between = [1] * (numbers.dim() - 2)
        columns = self.columns.view(len(self.rows), *between, -1).expand_as(numbers)
        real = self.real.view(len(self.rows), *between, -1)
        whole[self.rows] = torch.zeros_like(whole[self.rows]).scatter_add_(-1, columns, numbers * real)

    def _some(self, rows: slice) -> Group:
        """The group of some of its samples."""
        batch = self.batch.mapped(lambda value: value[rows])
        return Group(batch, self.rows[rows], self.columns[rows], self.real[rows])


_Part = tuple[Group, MemoryPlan, dict[str, Tensor]]  # a group, its plan, and its results [b, ...] by name


def lengths(batch: Batch) -> Tensor:
    """The number of tokens of each sample [B], without masked ones; 1 for a row that is all padding."""
    return batch.attention_mask.sum(-1).clamp_min(1)


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
    Raises UnsupportedMethod for a model of the other norm order, and UserError for a contrastive request without foils
    or a budget that is too small for one sample.
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
        _require(view, request.method)
    on_host, batch = batch.to("cpu"), batch.to(view.device)
    explanations = explanations_of(requests)
    budget = planner.free_bytes(view.device) if byte_budget is None else byte_budget
    parts: list[_Part] = []
    for rows, plan in planner.cut(MemoryNeeds.of(view), lengths(on_host).tolist(), budget):
        group = Group.of(on_host, rows).to(view.device)
        parts += _within_memory(view, group, maps, explanations, plan)
    plans = tuple(plan for _, plan, _ in parts)
    whole = {name: _assemble(batch, parts, name) for name in parts[0][2]}
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


def _require(view: ModelView, method: str) -> None:
    """Raise UnsupportedMethod, naming the method to use instead, if `method` does not apply to the model."""
    if method not in METHODS:
        raise UnsupportedMethod(f"{method!r} is no ALTI method; choose {' or '.join(METHODS)}")
    METHODS[method].require(view.family)


def _within_memory(
    view: ModelView, group: Group, maps: Maps, explanations: Sequence[str], plan: MemoryPlan
) -> Iterator[_Part]:
    """Yield the results of a group; if memory runs out, those of its halves, then of single samples in smaller chunks.

    Raises the error if memory runs out for a single sample in the smallest chunk.
    """
    try:
        yield group, plan, _compute(view, group.batch, maps, explanations, plan)
        return
    except Exception as error:
        if not is_out_of_memory(error) or plan.smallest:
            raise
        log.warning("out of memory with %s: halved", plan)
    if view.device.type == "cuda":
        torch.cuda.empty_cache()
    for half in group.halves() if plan.batch > 1 else [group]:
        yield from _within_memory(view, half, maps, explanations, plan.halved(len(half.batch)))


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


def _assemble(batch: Batch, parts: Sequence[_Part], name: str) -> Tensor:
    """The result of that name for the whole batch [B, ...], put together from the groups; 0 on padding."""
    over_tokens = name in _OVER_TOKENS
    first = parts[0][2][name]
    shape = [len(batch), *first.shape[1:]]
    if over_tokens:
        shape[-1] = batch.input_ids.shape[1]
    whole = first.new_zeros(shape)
    for group, _, numbers in parts:
        group.put(numbers[name], whole, over_tokens)
    return whole
