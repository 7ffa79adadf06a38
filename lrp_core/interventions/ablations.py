"""The numbers of an answer after prompts that lack some of their tokens.

A token may go in five ways. `remove` and `delete` give a shorter prompt: `remove` renders the text again without it,
which is up to the caller, `delete` takes out its id. `cut` hides its keys from every query in every layer and keeps
positions (AT2), `zero` and `mask` change its embedding as everywhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import takewhile
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from transformers import DynamicCache

from lrp_core.device.precision import unrounded
from lrp_core.device.transfer import to_host
from lrp_core.families.generic import GenericFamily
from lrp_core.interventions.tokens import check_way, tokens_removed
from lrp_core.readers.attention import Attended, Kernel, around_attention
from lrp_core.readers.readout import over_vocabulary, rows_for
from lrp_core.records.kinds import DELETE, MASK, ZERO
from lrp_core.records.types import Batch, UserError, span_row
from lrp_core.records.variants import TOKEN_BUDGET
from lrp_core.views.guard import check_rows, undisturbed
from lrp_core.views.view import ModelView

REMOVE, CUT = "remove", "cut"
WAYS = (REMOVE, CUT, MASK, ZERO, DELETE)
_IN_VAIN = 1 / 8  # the most of a row that is computed again for the sake of the rows beside it
_SEEN_THROUGH = 1e-6  # the most attention that a hidden token may get


class AnswerNumbers(NamedTuple):
    """Of M prompts and an answer of G tokens: logits f and log-odds l = f - logsumexp(other logits), [M, G] float64."""

    logits: np.ndarray
    log_odds: np.ndarray

    @staticmethod
    def joined(several: Sequence[AnswerNumbers]) -> AnswerNumbers:
        """The rows of all, one after the other."""
        logits, log_odds = zip(*several, strict=True)
        return AnswerNumbers(np.concatenate(logits), np.concatenate(log_odds))


def check_ways(view: ModelView, ways: Sequence[str], instead: int | None = None) -> None:
    """Raises UserError for models without answers, and for a way that does not exist or that the model lacks."""
    if view.kind.labels or view.kind.slot or isinstance(view.family, GenericFamily):
        raise UserError(f"{view.family.title} say no answers: sources are of models that go on with a text")
    for way in ways:
        if way not in WAYS:
            raise UserError(f"no way {way!r} to ablate; choose {', '.join(WAYS)}")
        if way in (MASK, ZERO):
            check_way(view, way, instead)


@torch.no_grad()
def answers_after(
    view: ModelView,
    prompts: Sequence[Sequence[int]],
    answer: Sequence[int],
    *,
    token_budget: int = TOKEN_BUDGET,
    cache: bool = True,
) -> AnswerNumbers:
    """The numbers of the tokens `answer` after each of M `prompts`, lists of ids; an answer is never tokenised again.

    What prompts begin with alike is read once by causal models whose layers all attend to everything before (`cache`);
    the results then differ by rounding. Raises UnusableRows for rows that are too long, and UserError for no tokens.
    """
    check_ways(view, ())
    if not answer or not all(prompts):
        raise UserError("answers and their prompts need at least one token each")
    distinct = sorted({tuple(prompt) for prompt in prompts})
    parts = _cached if cache and _keeps_everything(view) else _plain
    with undisturbed(view), torch.inference_mode(False), around_attention(view, {}):
        numbers = AnswerNumbers.joined(list(parts(view, distinct, answer, token_budget)))
    index_of = {prompt: at for at, prompt in enumerate(distinct)}
    of_prompts = [index_of[tuple(prompt)] for prompt in prompts]
    return AnswerNumbers(numbers.logits[of_prompts], numbers.log_odds[of_prompts])


@torch.no_grad()
def answers_without(
    view: ModelView,
    prompt: Sequence[int],
    answer: Sequence[int],
    gone: np.ndarray,
    way: str,
    *,
    instead: int | None = None,
    token_budget: int = TOKEN_BUDGET,
) -> AnswerNumbers:
    """The numbers of the tokens `answer` after the `prompt` [P] without some of its tokens, for M sets `gone` [M, P].

    `way` is any but `remove`; `instead` is the mask token of `mask`. Raises UserError for a way that the model does not
    know, and UnusableRows for a row that is too long.
    """
    check_ways(view, (way,), instead)
    if way == REMOVE:
        raise UserError("to remove tokens, render the prompts without them and give them to answers_after")
    if way == DELETE:
        kept = [[token for token, is_gone in zip(prompt, of_row, strict=True) if not is_gone] for of_row in gone]
        return answers_after(view, kept, answer, token_budget=token_budget)
    size = max(1, token_budget // (len(prompt) + len(answer)))
    several = []
    with undisturbed(view), torch.inference_mode(False):
        for start in range(0, len(gone), size):
            some = torch.from_numpy(np.ascontiguousarray(gone[start : start + size]))
            batch = _rows(view, [prompt] * len(some), answer)
            with _altered(view, batch, some, way, instead) as rows:
                several.append(_numbers(view, view.hidden(rows), rows))
    return AnswerNumbers.joined(several)


def _rows(view: ModelView, prompts: Sequence[Sequence[int]], answer: Sequence[int]) -> Batch:
    """A batch, on the CPU, whose spans are the answer after each prompt. Raises UnusableRows."""
    rows = []
    for prompt in prompts:
        if view.kind.decoder:
            row = span_row({"input_ids": list(prompt), "decoder_input_ids": list(answer[:-1])}, 0, answer)
        else:
            row = span_row({"input_ids": [*prompt, *answer[:-1]]}, len(prompt) - 1, answer)
        rows.append(row)
    batch = Batch.collate(rows_for(view, rows), view.pad_id)
    check_rows(view, batch)
    return batch


def _numbers(view: ModelView, hidden: Tensor, batch: Batch) -> AnswerNumbers:
    """The numbers of the spans of a batch, from its last hidden states."""
    assert batch.span_ids is not None
    state = view.prediction(hidden, batch)  # [M, G, D]
    logits = view.of_span(state, batch)[..., 0]
    others, _ = over_vocabulary(view, state.flatten(0, 1), batch.span_ids.flatten())
    log_odds = logits - others.view_as(logits).to(logits.device)
    return AnswerNumbers(*(value.double().numpy() for value in to_host([logits, log_odds])))


@contextmanager
def _altered(view: ModelView, batch: Batch, gone: Tensor, way: str, instead: int | None) -> Iterator[Batch]:
    """A context in which forward passes of the batch lack the tokens `gone` [M, P] of prompts."""
    width = batch.input_ids.shape[1]
    gone = torch.nn.functional.pad(gone, (0, width - gone.shape[1]))
    scope: AbstractContextManager[Any]
    if way == CUT:
        hidden = gone.to(view.device)
        attentions = [layer.attention for layer in view.attentions_over_text]
        scope = around_attention(view, dict.fromkeys(attentions, partial(_hiding, gone=hidden)), stock="eager")
        with scope:
            yield batch.to(view.device)
        return
    with around_attention(view, {}), tokens_removed(view, batch, gone, way, instead) as rows:
        yield rows


def _hiding(
    kernel: Kernel,
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Any,
    *,
    gone: Tensor,
    **more: Any,
) -> Attended:
    """Attention that sees no keys of the tokens `gone` [M, T]. Raises UserError for a kernel that does not comply."""
    hidden = gone.to(query.device)[:, None, None]  # [M, 1, 1, T]
    least = torch.finfo(query.dtype).min
    if mask is None:
        mask = query.new_zeros(1, 1, 1, key.shape[2])
    elif mask.dtype == torch.bool:
        mask = torch.zeros_like(mask, dtype=query.dtype).masked_fill(~mask, least)
    context, weights = kernel(module, query, key, value, mask[..., : key.shape[2]].masked_fill(hidden, least), **more)
    assert weights is not None  # the eager kernel returns them
    seen = weights.masked_fill(~hidden, 0)
    if query.shape[2] == key.shape[2]:
        seen = seen.masked_fill(hidden.mT, 0)  # nobody reads what these say
    if seen.amax() > _SEEN_THROUGH:
        raise UserError(
            f"the attention of {type(module).__name__} takes no mask of ours: choose another way than {CUT!r}"
        )
    return context, weights


def _plain(
    view: ModelView, prompts: Sequence[Sequence[int]], answer: Sequence[int], token_budget: int
) -> Iterator[AnswerNumbers]:
    at = 0
    while at < len(prompts):
        size = _fitting(prompts[at:], len(answer), token_budget)
        batch = _rows(view, prompts[at : at + size], answer).to(view.device)
        yield _numbers(view, view.hidden(batch), batch)
        at += size


def _fitting(prompts: Sequence[Sequence[int]], answer: int, token_budget: int) -> int:
    """The number of the first prompts that fit the budget together, one at least."""
    longest = 0
    for at, prompt in enumerate(prompts):
        longest = max(longest, len(prompt) + answer)
        if at and longest * (at + 1) > token_budget:
            return at
    return len(prompts)


def _keeps_everything(view: ModelView) -> bool:
    """True for causal models whose layers all attend to every token before, so that a prefix can be taken from another
    row.
    """
    config = view.config.get_text_config(decoder=True)
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    windowed = getattr(config, "sliding_window", None) is not None or "local" in getattr(config, "attention_layers", ())
    return view.kind.causal and kinds == {"full_attention"} and not windowed


@dataclass
class _Kept:
    """A prefix that was read, and the keys and values [1, G, P, K] of each layer."""

    ids: tuple[int, ...] = ()
    layers: tuple[tuple[Tensor, Tensor], ...] = ()

    def cache(self, length: int, rows: int) -> DynamicCache:
        """That of the first `length` tokens, for so many rows."""
        if not length:
            return DynamicCache()
        kept = [tuple(part[:, :, :length].expand(rows, -1, -1, -1) for part in layer) for layer in self.layers]
        return DynamicCache(kept)


def _cached(
    view: ModelView, prompts: Sequence[tuple[int, ...]], answer: Sequence[int], token_budget: int
) -> Iterator[AnswerNumbers]:
    """As `_plain`, for sorted prompts: the common beginning of a batch's rows is read once, and reused from the batch
    before.
    """
    kept, at = _Kept(), 0
    while at < len(prompts):
        some = prompts[at : at + _together(prompts[at:], len(answer), token_budget)]
        shared = min(_alike(some[0], some[-1]), min(map(len, some)) - 1)  # the answer is read from the last token on
        batch = _rows(view, some, answer)
        prefix, known = some[0][:shared], _alike(kept.ids, some[0][:shared])
        if known < shared:
            cache = kept.cache(known, 1)
            _read_on(view, Batch.collate([_plain_row(prefix)], view.pad_id), known, cache)
            kept = _Kept(prefix, tuple((keys, values) for keys, values, *_ in cache))
        hidden = _read_on(view, batch, shared, kept.cache(shared, len(some)))
        assert batch.span_positions is not None
        behind = replace(batch, span_positions=batch.span_positions - shared).to(view.device)
        yield _numbers(view, hidden, behind)
        at += len(some)


def _plain_row(ids: Sequence[int]) -> dict[str, Any]:
    return {"input_ids": ids, "position": len(ids) - 1, "target_id": 0}


def _together(prompts: Sequence[tuple[int, ...]], answer: int, token_budget: int) -> int:
    """The number of leading prompts for one batch: as many as fit, but after a quarter of these only prompts with the
    same beginning.
    """
    most = _fitting(prompts, answer, token_budget)
    lost = [len(prompts[0]) - _alike(prompts[0], prompt) for prompt in prompts[1:most]]
    few = 1 + sum(1 for _ in takewhile(lambda tokens: tokens <= _IN_VAIN * len(prompts[0]), lost))
    return min(most, max(few, most // 4))


def _alike(first: Sequence[int], other: Sequence[int]) -> int:
    """The number of tokens that both begin with."""
    pairs = zip(first, other, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def _read_on(view: ModelView, batch: Batch, known: int, cache: DynamicCache) -> Tensor:
    """Last hidden states of the tokens behind the first `known`, which are in the `cache`; it grows by the others."""
    batch = batch.to(view.device)
    with unrounded(view.dtype):
        states: Tensor = view.model.base_model(
            inputs_embeds=view.token_embedding(batch.input_ids[:, known:]),
            attention_mask=batch.attention_mask,
            position_ids=view.position_ids(batch)[:, known:],
            past_key_values=cache,
            use_cache=True,
            return_dict=True,
        ).last_hidden_state
    return states
