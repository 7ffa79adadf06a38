"""Logits and log-odds of an answer after prompts from which tokens were ablated.

There are four ways to ablate a token. `remove` and `delete` shorten the prompt: with `remove` the caller writes the
text again without it, `delete` drops its id. `cut` hides its keys from all queries in all layers and keeps positions
(AT2). `zero` sets its embedding to 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from closelook.lrp_core.device.transfer import to_host
from closelook.lrp_core.interventions.tokens import tokens_removed
from closelook.lrp_core.operations.forward import without
from closelook.lrp_core.readers.attention import Attended, Kernel, around_attention
from closelook.lrp_core.readers.predictions import rows_for
from closelook.lrp_core.records.kinds import DELETE, ZERO
from closelook.lrp_core.records.types import Batch, UserError, span_row
from closelook.lrp_core.records.variants import TOKEN_BUDGET
from closelook.lrp_core.views.guard import check_rows, undisturbed
from closelook.lrp_core.views.view import ModelView

REMOVE, CUT = "remove", "cut"
WAYS = (REMOVE, CUT, ZERO, DELETE)
_SEEN_THROUGH = 1e-6  # the largest attention weight that a hidden token may have


class AnswerNumbers(NamedTuple):
    """Logits f of the G tokens of an answer after each of M prompts, and log-odds l = f - logsumexp(other logits).

    Both are [M, G] in float64.
    """

    logits: np.ndarray
    log_odds: np.ndarray

    @staticmethod
    def joined(several: Sequence[AnswerNumbers]) -> AnswerNumbers:
        """The rows of several results, one after the other."""
        logits, log_odds = zip(*several, strict=True)
        return AnswerNumbers(np.concatenate(logits), np.concatenate(log_odds))


def _check_answers(view: ModelView) -> None:
    """Raise UserError for a model that writes no answers."""
    if view.kind.labels or view.kind.slot:
        raise UserError(
            f"{view.family.title} write no answers, so there are no sources to ablate: take a causal model or an "
            "encoder-decoder"
        )


@torch.no_grad()
def answers_after(
    view: ModelView,
    prompts: Sequence[Sequence[int]],
    answer: Sequence[int],
    *,
    token_budget: int = TOKEN_BUDGET,
) -> AnswerNumbers:
    """Logits and log-odds of the tokens `answer` after each of M `prompts`, given as lists of ids.

    Raises UnusableRows for rows that are too long, and UserError for an empty prompt or answer.
    """
    _check_answers(view)
    if not answer:
        raise UserError("`answer` is empty: give at least one token")
    for at, prompt in enumerate(prompts):
        if not prompt:
            raise UserError(f"prompt {at} of {len(prompts)} is empty: give at least one token")
    distinct = sorted({tuple(prompt) for prompt in prompts}, key=lambda prompt: (len(prompt), prompt))
    with undisturbed(view), torch.inference_mode(False):
        numbers = AnswerNumbers.joined(list(_batches(view, distinct, answer, token_budget)))
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
    token_budget: int = TOKEN_BUDGET,
) -> AnswerNumbers:
    """Logits and log-odds of the tokens `answer` after the `prompt` [P], for each of M ablations of it.

    `gone` [M, P] (bool) marks the prompt tokens to ablate; each of its M rows is one ablation. `way` is any of WAYS but
    `remove`. Raises UserError for another way and for a model that writes no answers, and UnusableRows for a row that
    is too long.
    """
    _check_answers(view)
    if way not in WAYS:
        known = ", ".join(each for each in WAYS if each != REMOVE)
        raise UserError(f"answers_without has no way {way!r} to ablate; choose {known}")
    if way == REMOVE:
        raise UserError(
            f"answers_without cannot ablate by {REMOVE!r}: write the prompts again without the tokens, and pass these "
            "prompts to answers_after"
        )
    if way == DELETE:
        kept = [[token for token, is_gone in zip(prompt, of_row, strict=True) if not is_gone] for of_row in gone]
        return answers_after(view, kept, answer, token_budget=token_budget)
    size = max(1, token_budget // (len(prompt) + len(answer)))
    several = []
    with undisturbed(view), torch.inference_mode(False):
        for start in range(0, len(gone), size):
            some = torch.from_numpy(np.ascontiguousarray(gone[start : start + size]))
            batch = _rows(view, [prompt] * len(some), answer)
            with _altered(view, batch, some, way) as rows:
                several.append(_numbers(view, rows))
    return AnswerNumbers.joined(several)


def _rows(view: ModelView, prompts: Sequence[Sequence[int]], answer: Sequence[int]) -> Batch:
    """A batch, on the CPU, of prompts followed by the answer, which is the span of each row. Raises UnusableRows."""
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


def _numbers(view: ModelView, batch: Batch) -> AnswerNumbers:
    """Logits and log-odds of the spans of a batch."""
    assert batch.span_ids is not None
    every = view.all_logits(batch)  # [M, G, V]
    ids = batch.span_ids.to(every.device)[..., None]
    logits = every.gather(2, ids)[..., 0]
    log_odds = logits - without(every, ids)
    return AnswerNumbers(*(value.double().numpy() for value in to_host([logits, log_odds])))


@contextmanager
def _altered(view: ModelView, batch: Batch, gone: Tensor, way: str) -> Iterator[Batch]:
    """Inside, forwards of the batch that this yields lack the tokens `gone` [M, P] of their prompts."""
    width = batch.input_ids.shape[1]
    gone = torch.nn.functional.pad(gone, (0, width - gone.shape[1]))
    if way == CUT:
        hiding = partial(_hiding, gone=gone.to(view.device))
        around = {layer.attention: hiding for layer in view.attentions_over_text}
        with around_attention(view, around, stock="eager"):
            yield batch.to(view.device)
        return
    with tokens_removed(view, batch, gone, way) as rows:
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
    """Attention in which no query sees the keys of the tokens `gone` [M, T]; stands in for the eager kernel."""
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
        seen = seen.masked_fill(hidden.mT, 0)  # hidden queries do not matter: no other token sees their output
    if seen.amax() > _SEEN_THROUGH:
        raise UserError(
            f"the attention of {type(module).__name__} ignores masks of tokens: ablate in another way than {CUT!r}"
        )
    return context, weights


def _batches(
    view: ModelView, prompts: Sequence[Sequence[int]], answer: Sequence[int], token_budget: int
) -> Iterator[AnswerNumbers]:
    """Yield the results of the prompts, batch by batch; neighbours of equal length need no padding."""
    at = 0
    while at < len(prompts):
        size = _fitting(prompts[at:], len(answer), token_budget)
        yield _numbers(view, _rows(view, prompts[at : at + size], answer))
        at += size


def _fitting(prompts: Sequence[Sequence[int]], answer: int, token_budget: int) -> int:
    """The number of first prompts that, padded and with the answer, fit the budget together; at least one."""
    longest = 0
    for at, prompt in enumerate(prompts):
        longest = max(longest, len(prompt) + answer)
        if at and longest * (at + 1) > token_budget:
            return at
    return len(prompts)
