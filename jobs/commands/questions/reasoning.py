"""Spans of an answer explained by the prompt alone, through the reasoning that stands between the two."""

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
    said: Said, span: Span, reasoning: tuple[int, int], hops: int, explain: Callable[[Row], Relevance]
) -> tuple[Relevance, Hops]:
    """The prompt's relevance for a span, and what the hops leave out; other tokens have none.

    `explain(row)` is a method's relevance of a row of a span, `reasoning` are characters of the answer. Raises
    UserError where they do not stand before the span.
    """
    [part] = said.tokens_of([reasoning])
    if part.behind > span.first:
        text = said.text[span.start : span.end]
        raise UserError(
            f"`reasoning` has to end before the explained part, and ends after the beginning of {text!r:.60}"
        )
    width = len(said.prompt["input_ids"])
    before = width + len(said.prompt.get("decoder_input_ids") or ())
    every = torch.arange(width)
    results: list[Relevance] = []

    def weighted(weights: Tensor) -> Tensor:
        relevance = explain(said.row(replace(span, first=0), weights.tolist()))
        results.append(relevance)
        sides = [relevance.tokens[0]]
        if relevance.decoder_tokens is not None:
            sides.append(relevance.decoder_tokens[0])
        elif said.is_decoders:  # the method says nothing of what the decoder has seen
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
