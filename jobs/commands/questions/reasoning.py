"""Explains spans of an answer by the prompt alone: relevance of the reasoning before them is passed on in hops."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from evaluation.benchmark.samples import Row
from jobs.commands.questions.spans import Said, Span
from lrp_core.methods.hops import Hops, hopped
from lrp_core.records.types import Relevance, UserError


def through_reasoning(
    answer_text: Said, span: Span, reasoning: tuple[int, int], hops: int, explain: Callable[[Row], Relevance]
) -> tuple[Relevance, Hops]:
    """(relevance for a span, its Hops: shares discarded and left). Tokens outside the prompt have relevance 0.

    `explain(row)` returns a method's relevance for the row of a span; `reasoning` are characters (start, end) of the
    answer. Raises UserError unless they end before the span begins.
    """
    [part] = answer_text.tokens_of([reasoning])
    if part.behind > span.first:
        text = answer_text.text[span.start : span.end]
        raise UserError(f"`reasoning` must end before the explained span, but ends after the beginning of {text!r:.60}")
    width = len(answer_text.prompt["input_ids"])
    before = width + len(answer_text.prompt.get("decoder_input_ids") or ())
    every = torch.arange(width)
    results: list[Relevance] = []

    def weighted(weights: Tensor) -> Tensor:
        """The relevance of all tokens before the span's end, for the sum of the answer's logits times `weights`."""
        relevance = explain(answer_text.row(replace(span, first=0), weights.tolist()))
        results.append(relevance)
        sides = [relevance.tokens[0]]
        if relevance.decoder_tokens is not None:
            sides.append(relevance.decoder_tokens[0])
        elif answer_text.is_decoders:  # no relevance of the decoder's tokens: they count as 0
            sides.append(torch.zeros(before + span.behind - width).to(sides[0]))
        return torch.cat(sides)

    explained = torch.zeros(span.behind)
    explained[span.first :] = 1
    tokens = torch.arange(part.first, part.behind)
    hops_made = hopped(weighted, explained, every, tokens, before + tokens, hops)
    first = results[0]
    prompt = torch.zeros_like(first.tokens).index_copy(1, every, hops_made.prompt[None].to(first.tokens))
    of_decoder = None if first.decoder_tokens is None else torch.zeros_like(first.decoder_tokens)
    return replace(first, tokens=prompt, decoder_tokens=of_decoder, conserves=False), hops_made
