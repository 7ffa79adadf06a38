"""Views of samples whose answer is explained as a whole.

The model reads the prompt and all tokens of the answer but the last; every token of the answer is explained at the
position that predicts it. The answer's tokens are those that the tokenizer adds to the prompt when the answer follows.
Where the end of the prompt and the beginning of the answer would share a token, they are those of the answer alone.
Either must decode to the answer.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from transformers import PreTrainedTokenizerBase

from closelook.evaluation.benchmark.answers.prompts import (
    NO_UNIT,
    Prompt,
    Written,
    checked,
    encoded,
    sentences_in,
    units_of,
    units_of_tokens,
    written,
)
from closelook.evaluation.benchmark.encoding import Encoding, decoded, encode, view_row
from closelook.evaluation.benchmark.samples import Malformed, Row, Span, UnitKind, meta_of
from closelook.evaluation.benchmark.slotless import too_long
from closelook.lrp_core.records.kinds import Kind


def answer_view(
    row: Row,
    tokenizer: PreTrainedTokenizerBase,
    writer: PreTrainedTokenizerBase,
    kind: Kind,
    max_length: int,
    unit_kind: UnitKind | None,
) -> Row:
    """The view row of a generic row whose target is an answer.

    `tokenizer` splits prompt and answer; for encoder-decoders `writer` splits the answer. Raises Malformed for a row
    that is no prompt with an answer at its end, and for units or tokens that do not fit.
    """
    _check(row)
    answer, meta = row["target"], meta_of(row)
    prompt = Prompt.of(row["text"], meta)
    units = _units(prompt, meta, unit_kind)
    parts = checked(meta["answer_parts"], answer, least=1) if "answer_parts" in meta else sentences_in(answer)
    text = written(prompt, tokenizer)
    context = encoded(text, tokenizer, open_ended=not kind.decoder)
    tokens = _of_decoder(answer, writer) if kind.decoder else _behind(answer, text, context, tokenizer)
    if context.special.all():
        raise Malformed("no text before the answer")
    if not len(tokens):
        raise Malformed("the answer has no token")
    so_far = tokens.ids[:-1]
    length = max(len(context), len(tokens)) if kind.decoder else len(context) + len(so_far)
    if length > max_length:
        raise too_long(length, max_length)
    inputs = context if kind.decoder else context.followed_by(so_far)
    numbers = _unit_of_tokens(units, text, context, prompt)
    marked = [_shares(unit, row["evidence"]) for unit in units] if row["evidence"] else None
    if marked is not None and not any(marked):
        raise Malformed("the evidence is in no unit")
    answer_spans, answer_parts = _sentences(answer, parts, tokens)
    more: Row = {"decoder_input_ids": so_far} if kind.decoder else {}
    return view_row(
        row,
        inputs,
        len(so_far) if kind.decoder else len(inputs) - 1,
        target=tokens.ids[-1],
        evidence=None if marked is None else inputs.covers(map(text.shifted, row["evidence"])),
        answer_ids=tokens.ids,
        units=[*numbers, *[NO_UNIT] * (len(inputs) - len(context))],
        unit_spans=list(map(list, units)),
        unit_evidence=marked,
        prompt=prompt.text,
        turns=None if prompt.turns is None else json.dumps(prompt.turns),
        answer=answer,
        answer_spans=answer_spans,
        answer_parts=answer_parts,
        **more,
    )


def _check(row: Row) -> None:
    """Raises Malformed for a row that is no prompt with an answer at its end."""
    if row["slot"] != len(row["text"]) or row["target"] is None:
        raise Malformed("no answer behind a prompt", "the target must follow the end of the text")
    if row["foil"] is not None:
        raise Malformed("an answer that is explained as a whole has no foil", repr(row["foil"]))


def _units(prompt: Prompt, meta: Row, kind: UnitKind | None) -> list[Span]:
    """The units of a prompt, of this `kind`. Raises Malformed for units that do not fit the prompt or its messages."""
    units = units_of(prompt.text, meta, kind)
    for start, end in units:
        if prompt.turns is not None and not any(low <= start and end <= high for _, low, high in prompt.turns):
            raise Malformed("a unit that is not within one message", f"[{start}, {end}): give one for each message")
    return units


def _behind(answer: str, text: Written, context: Encoding, tokenizer: PreTrainedTokenizerBase) -> Encoding:
    """The tokens of an answer behind its prompt, which has the tokens `context`."""
    joint, read = encoded(replace(text, text=text.text + answer), tokenizer, open_ended=True), len(context)
    if joint.ids[:read] == context.ids:
        tokens = Encoding(joint.ids[read:], joint.offsets[read:] - len(text.text), joint.special[read:])
    else:
        [tokens] = encode(tokenizer, [answer], template=False)
    if decoded(tokenizer, context.ids + tokens.ids) != decoded(tokenizer, context.ids) + answer:
        raise Malformed("the tokenizer does not reproduce the answer", repr(answer)[:80])
    return tokens


def _of_decoder(answer: str, writer: PreTrainedTokenizerBase) -> Encoding:
    """The tokens of an answer that a decoder writes: without white space around it, and not joined to the prompt."""
    [tokens] = encode(writer, [answer.strip()], template=False)
    if decoded(writer, tokens.ids).strip() != answer.strip():
        raise Malformed("the tokenizer does not reproduce the answer", repr(answer)[:80])
    return replace(tokens, offsets=tokens.offsets + len(answer) - len(answer.lstrip()))


def _unit_of_tokens(units: Sequence[Span], text: Written, context: Encoding, prompt: Prompt) -> list[int]:
    """The number of each token's unit, NO_UNIT outside of units."""
    shifted = [text.shifted(unit) for unit in units]
    numbers: list[int] = units_of_tokens(context.offsets, context.special, text.text, shifted).tolist()
    if NO_UNIT not in numbers:
        raise Malformed("the units cover the whole prompt", "leave the question out of them: it is never removed")
    lacking = sorted(set(range(len(shifted))) - set(numbers))
    if lacking:
        start, end = units[lacking[0]]
        raise Malformed("a unit has no token of its own", repr(prompt.text[start:end])[:80])
    return numbers


def _sentences(answer: str, parts: Sequence[Span], tokens: Encoding) -> tuple[list[list[int]], list[int]]:
    """(spans of those `parts` of the answer that have a token of their own, the number of each token's part)."""
    numbers = units_of_tokens(tokens.offsets, np.zeros(len(tokens), bool), answer, parts)
    spoken, numbers = np.unique(numbers, return_inverse=True)
    shift = int(spoken[0] == NO_UNIT)
    return [list(parts[part]) for part in spoken[shift:]], (numbers - shift).tolist()


def _shares(unit: Span, spans: Sequence[Sequence[int]]) -> bool:
    """True where a unit and one of the spans share a character."""
    return any(max(unit[0], start) < min(unit[1], end) for start, end in spans)
