"""An answer of a model to a prompt, given or generated greedily, and the spans of it that are explained as a whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, zip_longest
from typing import Any

import numpy as np
import torch
from transformers import GenerationConfig

from closelook.evaluation.benchmark.answers.prompts import sentences_in, units_of_tokens
from closelook.evaluation.benchmark.encoding import encoding_of_ids
from closelook.explaining.opening import Opened
from closelook.explaining.question import SENTENCE, TOKEN, Answer, Input, Spans
from closelook.explaining.reading import View, answer_ids, read
from closelook.lrp_core.device.precision import unrounded
from closelook.lrp_core.records.types import UserError, span_row
from closelook.lrp_core.views.guard import undisturbed
from closelook.terminal import complain

OWN = "answer so far"  # name of the part of the input that the earlier tokens of the answer are
#: Settings of generation_config.json that change predictions and are not followed, with the values that change nothing.
_NOT_FOLLOWED: dict[str, tuple[Any, ...]] = {
    "do_sample": (False,),
    "num_beams": (1,),
    "penalty_alpha": (0.0,),
    "repetition_penalty": (1.0,),
    "encoder_repetition_penalty": (1.0,),
    "no_repeat_ngram_size": (0,),
    "encoder_no_repeat_ngram_size": (0,),
    "min_length": (0,),
    "min_new_tokens": (0,),
    "bad_words_ids": (),
    "sequence_bias": (),
    "exponential_decay_length_penalty": (),
    "guidance_scale": (1.0,),
}
_announced: set[tuple[str, ...]] = set()  # (model, its settings) that this process has announced


@dataclass(frozen=True)
class Span:
    """A span of an answer: characters [start, end) of its text, and its tokens [first, behind)."""

    start: int
    end: int
    first: int
    behind: int


@dataclass(frozen=True)
class AnswerText:
    """A prompt with the answer that follows it."""

    prompt: View  # without the answer
    ids: list[int]  # [n], the answer's tokens
    text: str  # of the answer
    offsets: np.ndarray  # [n, 2], the characters [start, end) of `text` of each token
    pieces: list[str]  # the texts of the tokens before the answer (of the prompt, or the decoder's), then of the answer

    def view(self, span: Span) -> View:
        """The view that explains a span: the sum of its tokens' logits."""
        prompt, so_far = self.prompt, self.ids[: span.behind - 1]
        explained = span_row({}, prompt.position + span.first, self.ids[span.first : span.behind])
        view = replace(prompt, **explained)
        if prompt.decoder_input_ids is not None:
            return replace(view, decoder_input_ids=[*prompt.decoder_input_ids, *so_far])
        special = [*prompt.special_mask, *[False] * len(so_far)]
        names = [*(prompt.part_names or ()), *[OWN] * len(so_far)]
        return replace(view, input_ids=[*prompt.input_ids, *so_far], special_mask=special, part_names=names)

    def spans(self, spans: Spans) -> list[Span]:
        """The spans for `Answer.spans`: the whole answer (None), its sentences, its tokens, or given characters."""
        if spans is None:
            return [Span(0, len(self.text), 0, len(self.ids))]
        if spans == TOKEN:
            return [Span(int(start), int(end), at, at + 1) for at, (start, end) in enumerate(self.offsets)]
        if spans == SENTENCE:
            return self._of_characters(sentences_in(self.text), every=False)
        pairs: Any = spans
        return self._of_characters(pairs)

    def _of_characters(self, spans: Sequence[tuple[int, int]], every: bool = True) -> list[Span]:
        """The spans for pairs of characters (start, end). A token across two spans belongs to the one with more of it.

        Raises UserError for spans that overlap or lie outside of the answer, and for no spans. Spans without a token
        are an error, too, or without `every` left out.
        """
        if not spans:
            raise UserError("`spans` is empty: name at least one part (start, end) of the answer")
        for start, end in spans:
            if not 0 <= start < end <= len(self.text):
                raise UserError(f"({start}, {end}) is no part of the answer, which has {len(self.text)} characters")
        for (start, end), (other, behind) in pairwise(sorted(spans)):
            if other < end:
                raise UserError(
                    f"`spans` overlap: ({start}, {end}) and ({other}, {behind}); explain one in another call"
                )
        numbers = units_of_tokens(self.offsets, np.zeros(len(self.ids), bool), self.text, spans)
        token_spans = []
        for number, (start, end) in enumerate(spans):
            tokens = np.flatnonzero(numbers == number)
            if len(tokens):
                token_spans.append(Span(start, end, int(tokens[0]), int(tokens[-1]) + 1))
            elif every:
                raise UserError(f"no token of the answer belongs to {self.text[start:end]!r}: widen ({start}, {end})")
        return token_spans


def answer_text(item: Input, question: Answer, opened: Opened) -> AnswerText:
    """The prompt of a question with its answer, given or generated.

    Raises UserError if the answer's tokens, turned into text again, are not the answer.
    """
    prompt = read(item, question, opened)
    if question.answer is None:
        ids = generated(prompt, question.most, opened)
    else:
        ids = answer_ids(item, question, opened)
    before = prompt.decoder_input_ids or prompt.input_ids
    encoding, spelt = encoding_of_ids(ids, opened.writer, after=before)
    text = question.answer if isinstance(question.answer, str) else spelt.lstrip()
    if text.strip() != spelt.strip():
        where = next(at for at, pair in enumerate(zip_longest(text.strip(), spelt.strip())) if len(set(pair)) > 1)
        ours, theirs = (repr(each.strip()[max(0, where - 10) : where + 10]) for each in (text, spelt))
        raise UserError(f"the tokenizer turns {ours} of the answer into {theirs}: give the answer in this form")
    lead = len(text.lstrip()) - len(text) + len(spelt) - len(spelt.lstrip())
    pieces = opened.written.of([*before[len(start_ids(opened)) :], *ids])
    return AnswerText(prompt, ids, text, np.clip(encoding.offsets - lead, 0, len(text)), pieces)


def start_ids(opened: Opened) -> list[int]:
    """The tokens that the decoder of an encoder-decoder begins with; [] for other models."""
    return opened.view.start_ids if opened.view.kind.decoder else []


def warn_of_settings(opened: Opened) -> None:
    """Tell, once for each model, which settings of its `generate` its explained predictions do not follow."""
    view = opened.view
    settings = None if view.kind.labels or view.kind.slot else view.model.generation_config
    if settings is None:  # a model that does not generate
        return
    values = {name: getattr(settings, name) for name in _NOT_FOLLOWED}
    if not view.kind.decoder:
        values["forced_bos_token_id"] = settings.forced_bos_token_id
    ignored = [f"{name} {value}" for name, value in values.items() if value not in (None, *_NOT_FOLLOWED.get(name, ()))]
    message = opened.id, *ignored
    if ignored and message not in _announced:
        _announced.add(message)
        complain(f"{opened.id}: the most probable token is explained; `generate` also follows {', '.join(ignored)}")


def generated(prompt: View, most: int, opened: Opened) -> list[int]:
    """The token ids of the model's own answer, decoded greedily up to an end token or `most` tokens.

    Raises UserError if the first token is an end token.
    """
    view = opened.view
    warn_of_settings(opened)
    usual = view.model.generation_config
    known = (opened.writer.eos_token_id, view.config.eos_token_id, usual.eos_token_id)
    ends = {end for ids in known if ids is not None for end in (ids if isinstance(ids, list) else [ids])}
    start = prompt.decoder_input_ids
    settings = GenerationConfig(
        max_new_tokens=most,
        do_sample=False,
        eos_token_id=sorted(ends) or None,
        pad_token_id=view.pad_id,
        decoder_start_token_id=None if start is None else start[0],
        suppress_tokens=usual.suppress_tokens,
        begin_suppress_tokens=usual.begin_suppress_tokens,
        use_cache=start is None,  # transformers sizes T5's by the encoder's layers, which may be fewer
    )
    read_ids, options = torch.tensor([prompt.input_ids], device=view.device), {}
    if start is not None:
        options["decoder_input_ids"] = torch.tensor([start], device=view.device)
    model: Any = view.model
    with undisturbed(view), torch.no_grad(), unrounded(view.dtype):
        try:  # the model's own may hold beams or penalties, which `generate` would add to `settings`
            model.generation_config = settings
            tokens = model.generate(read_ids, attention_mask=torch.ones_like(read_ids), **options)
        finally:
            model.generation_config = usual
    new_ids: list[int] = tokens[0, options.get("decoder_input_ids", read_ids).shape[1] :].tolist()
    if new_ids and new_ids[-1] in ends:
        new_ids.pop()
    if not new_ids:
        raise UserError(f"{opened.id} generates no answer after this text, but an end token: give an `answer`")
    return new_ids
