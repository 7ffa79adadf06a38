"""An answer of a model to a prompt, given or generated, and the spans of it that are explained as a whole.

Spans may be explained by the prompt alone: relevance of the reasoning before them is then passed on in hops.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, zip_longest
from typing import Any

import numpy as np
import torch
from torch import Tensor

from closelook.evaluation.benchmark.answers.prompts import sentences_in, units_of_tokens
from closelook.evaluation.benchmark.encoding import encoding_of_ids
from closelook.evaluation.benchmark.samples import Row
from closelook.jobs.commands.questions.generation import generated
from closelook.jobs.commands.questions.opened import Opened
from closelook.jobs.commands.questions.question import SENTENCE, TOKEN, Question
from closelook.jobs.commands.questions.reading import answer_ids, read
from closelook.lrp_core.methods.hops import Hops, hopped
from closelook.lrp_core.readers.readout import rows_for
from closelook.lrp_core.records.types import Relevance, UserError, span_row
from closelook.lrp_core.views.encoder_decoder import EncoderDecoderView

OWN = "answer so far"  # name of the part of the input that the earlier tokens of the answer are


@dataclass(frozen=True)
class Span:
    """A span of an answer: characters [start, end) of its text, and its tokens [first, behind)."""

    start: int
    end: int
    first: int
    behind: int


@dataclass(frozen=True)
class Said:
    """A prompt with the answer that follows it."""

    prompt: Row  # of schema VIEW, without the answer
    ids: list[int]  # [n], the answer's tokens
    text: str  # of the answer
    offsets: np.ndarray  # [n, 2], the characters [start, end) of `text` of each token
    pieces: list[str]  # the texts of the tokens before the answer (of the prompt, or the decoder's), then of the answer

    @property
    def is_decoders(self) -> bool:
        """True for encoder-decoders: the decoder writes the answer, and the encoder reads the prompt."""
        return self.prompt.get("decoder_input_ids") is not None

    def row(self, span: Span, weights: Sequence[float] | None = None) -> Row:
        """The row of schema VIEW that explains a span: the sum of its tokens' logits, times `weights` if given."""
        row, answer_so_far = dict(self.prompt), self.ids[: span.behind - 1]
        if self.is_decoders:
            row["decoder_input_ids"] = [*row["decoder_input_ids"], *answer_so_far]
        else:
            row["input_ids"] = [*row["input_ids"], *answer_so_far]
            row["special_mask"] = [*row["special_mask"], *[False] * len(answer_so_far)]
            row["part_names"] = [*row["part_names"], *[OWN] * len(answer_so_far)]
        first = self.prompt["position"] + span.first
        return {**span_row(row, first, self.ids[span.first : span.behind], weights), "said": span}

    def tokens_of(self, spans: Sequence[tuple[int, int]], every: bool = True) -> list[Span]:
        """The spans for pairs of characters (start, end). A token across two spans belongs to the one with more of it.

        Raises UserError for spans that overlap or lie outside of the answer, and for no spans. Spans without a token
        are an error, too, or without `every` left out.
        """
        for start, end in spans:
            if not 0 <= start < end <= len(self.text):
                raise UserError(f"({start}, {end}) is no part of the answer, which has {len(self.text)} characters")
        ordered = sorted(spans)
        for (start, end), (other, behind) in pairwise(ordered):
            if other < end:
                raise UserError(
                    f"`spans` overlap: ({start}, {end}) and ({other}, {behind}); explain one in another call"
                )
        if not spans:
            raise UserError("`spans` is empty: name at least one part (start, end) of the answer")
        numbers = units_of_tokens(self.offsets, np.zeros(len(self.ids), bool), self.text, spans)
        token_spans = []
        for number, (start, end) in enumerate(spans):
            tokens = np.flatnonzero(numbers == number)
            if not len(tokens) and not every:
                continue
            if not len(tokens):
                raise UserError(f"no token of the answer belongs to {self.text[start:end]!r}: widen ({start}, {end})")
            token_spans.append(Span(start, end, int(tokens[0]), int(tokens[-1]) + 1))
        return token_spans

    def spans(self, asked: Any) -> list[Span]:
        """The spans for `Question.spans`: the whole answer (None), its sentences, its tokens, or given characters."""
        if asked is None:
            return [Span(0, len(self.text), 0, len(self.ids))]
        if asked == TOKEN:
            places = [(int(start), int(end)) for start, end in self.offsets]
            return [Span(*span, at, at + 1) for at, span in enumerate(places)]
        if asked == SENTENCE:
            return self.tokens_of(sentences_in(self.text), every=False)
        return self.tokens_of(asked)


def said_of(question: Question, opened: Opened) -> Said:
    """The prompt of a question with its answer, given or generated.

    Raises UserError if the answer's tokens, turned into text again, are not the answer.
    """
    row, given_answer = read(question, opened), question.answer
    [prompt] = rows_for(opened.view, [row])
    ids = (
        generated(dict(prompt), question.generate, opened)
        if given_answer is None
        else answer_ids(question, opened, row)
    )
    before = prompt.get("decoder_input_ids") or prompt["input_ids"]
    encoding, spelt = encoding_of_ids(ids, opened.writer, after=before)
    text = given_answer if isinstance(given_answer, str) else spelt.lstrip()
    if text.strip() != spelt.strip():
        where = next(at for at, pair in enumerate(zip_longest(text.strip(), spelt.strip())) if len(set(pair)) > 1)
        ours, theirs = (repr(each.strip()[max(0, where - 10) : where + 10]) for each in (text, spelt))
        raise UserError(f"the tokenizer turns {ours} of the answer into {theirs}: give the answer in this form")
    lead = len(text.lstrip()) - len(text) + len(spelt) - len(spelt.lstrip())
    written = before[len(opened.view.start_ids) :] if isinstance(opened.view, EncoderDecoderView) else before
    pieces = opened.written.of([*written, *ids])
    return Said(dict(prompt), ids, text, np.clip(encoding.offsets - lead, 0, len(text)), pieces)


def through_reasoning(
    answer_text: Said, span: Span, question: Question, explain: Callable[[Row], Relevance]
) -> tuple[Relevance, Hops]:
    """(relevance for a span, its Hops: shares discarded and left). Tokens outside the prompt have relevance 0.

    `explain(row)` returns a method's relevance for the row of a span. Raises UserError unless the question's
    `reasoning` ends before the span begins.
    """
    assert question.reasoning is not None
    [part] = answer_text.tokens_of([question.reasoning])
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
    hops_made = hopped(weighted, explained, every, tokens, before + tokens, question.hops)
    first = results[0]
    prompt = torch.zeros_like(first.tokens).index_copy(1, every, hops_made.prompt[None].to(first.tokens))
    of_decoder = None if first.decoder_tokens is None else torch.zeros_like(first.decoder_tokens)
    return replace(first, tokens=prompt, decoder_tokens=of_decoder, conserves=False), hops_made
