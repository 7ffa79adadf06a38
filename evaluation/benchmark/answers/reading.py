"""Views of samples whose answer is explained as a whole.

The model reads the prompt and all tokens of the answer but the last; every token of the answer is explained at the
position that predicts it. The answer's tokens are those that the tokenizer adds to the prompt when the answer follows.
Where the end of the prompt and the beginning of the answer would share a token, they are those of the answer alone.
Either must decode to the answer.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

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
from closelook.evaluation.benchmark.encoding import Encoding, decoded, encode
from closelook.evaluation.benchmark.samples import Malformed, Row, Span, UnitKind, meta_of, rejecting, view_row
from closelook.lrp_core.records.kinds import Kind

AT_ONCE = 256  # rows that are encoded together


@dataclass(frozen=True)
class _Entry:
    """A generic row with its prompt as text for the tokenizer, its units, and the sentences of its answer."""

    row: Row
    prompt: Prompt
    written: Written
    units: list[Span]
    parts: list[Span]  # of the answer, in characters


def read_answers(
    rows: Sequence[Row],
    tokenizer: PreTrainedTokenizerBase,
    writer: PreTrainedTokenizerBase,
    kind: Kind,
    max_length: int,
    unit_kind: UnitKind | None,
    rejects: list[Row],
) -> list[Row]:
    """Turn generic rows, whose target is an answer, into view rows; rows that cannot become one go to `rejects`.

    `tokenizer` splits prompts and answers; for encoder-decoders `writer` splits the answers. Raises UserError if
    sentences are needed and spaCy is not installed.
    """
    entries: list[_Entry] = []
    for row in rows:
        with rejecting(rejects, "view", sample_id=row["sample_id"]):
            entries.append(_entry_of(row, tokenizer, unit_kind))
    views = []
    for start in range(0, len(entries), AT_ONCE):
        some = entries[start : start + AT_ONCE]
        texts = [entry.written for entry in some]
        contexts = encoded(texts, tokenizer, open_ended=not kind.decoder)
        joined = [replace(entry.written, text=entry.written.text + entry.row["target"]) for entry in some]
        joint = [None] * len(some) if kind.decoder else encoded(joined, tokenizer, open_ended=True)
        for entry, context, both in zip(some, contexts, joint, strict=True):
            with rejecting(rejects, "view", sample_id=entry.row["sample_id"]):
                answer = _of_decoder(entry, writer) if both is None else _behind(entry, context, both, tokenizer)
                views.append(_view(entry, context, answer, kind, max_length))
    return views


def _entry_of(row: Row, tokenizer: PreTrainedTokenizerBase, kind: UnitKind | None) -> _Entry:
    """`row` with its prompt as the model reads it, its units of this `kind`, and the sentences of its answer.

    Raises Malformed for a row that is no prompt with an answer at its end, and for units that do not fit the prompt.
    """
    if row["slot"] != len(row["text"]) or row["target"] is None:
        raise Malformed("no answer behind a prompt", "the target must follow the end of the text")
    if row["foil"] is not None:
        raise Malformed("an answer that is explained as a whole has no foil", repr(row["foil"]))
    meta = meta_of(row)
    prompt = Prompt.of(row["text"], meta)
    units = units_of(prompt.text, meta, kind)
    for start, end in units:
        if prompt.turns is not None and not any(low <= start and end <= high for _, low, high in prompt.turns):
            raise Malformed("a unit that is not within one message", f"[{start}, {end}): give one for each message")
    answer = row["target"]
    parts = meta.get("answer_parts")
    parts = sentences_in(answer) if parts is None else checked(parts, answer, least=1)
    return _Entry(row, prompt, written(prompt, tokenizer), units, parts)


@dataclass(frozen=True)
class _Answer:
    """Tokens of an answer [G], and the characters of the answer that each covers [G, 2]."""

    ids: list[int]
    offsets: np.ndarray


def _behind(entry: _Entry, context: Encoding, joint: Encoding, tokenizer: PreTrainedTokenizerBase) -> _Answer:
    """The tokens of an answer that follows its prompt.

    `context` are the tokens of the prompt, `joint` those of prompt and answer together. If `joint` does not begin with
    `context`, since a token would span both, the answer is tokenised alone. Raises Malformed if the tokens do not
    decode to the answer.
    """
    target, read = entry.row["target"], len(context)
    if joint.ids[:read] == context.ids:
        answer = _Answer(joint.ids[read:], joint.offsets[read:] - len(entry.written.text))
    else:
        [by_itself] = encode(tokenizer, [target], template=False)
        answer = _Answer(by_itself.ids, by_itself.offsets)
    before = decoded(tokenizer, context.ids)
    if decoded(tokenizer, context.ids + answer.ids) != before + target:
        raise Malformed("the tokenizer does not reproduce the answer", repr(target)[:80])
    return answer


def _of_decoder(entry: _Entry, writer: PreTrainedTokenizerBase) -> _Answer:
    """The tokens of an answer that a decoder writes: without white space around it, and not joined to the prompt.

    Raises Malformed if they do not decode to the answer.
    """
    target: str = entry.row["target"]
    [by_itself] = encode(writer, [target.strip()], template=False)
    if decoded(writer, by_itself.ids).strip() != target.strip():
        raise Malformed("the tokenizer does not reproduce the answer", repr(target)[:80])
    return _Answer(by_itself.ids, by_itself.offsets + len(target) - len(target.lstrip()))


def _view(entry: _Entry, context: Encoding, answer: _Answer, kind: Kind, max_length: int) -> Row:
    """The view row. Raises Malformed."""
    answer_so_far = answer.ids[:-1]
    length = max(len(context), len(answer.ids)) if kind.decoder else len(context) + len(answer_so_far)
    if context.special.all():
        raise Malformed("no text before the answer")
    if not answer.ids:
        raise Malformed("the answer has no token")
    if length > max_length:
        raise Malformed("too long", f"{length} tokens, the model takes {max_length}")
    row, units, prompt = entry.row, entry.units, entry.prompt
    numbers = _unit_of_tokens(entry, context)
    behind = [] if kind.decoder else answer_so_far
    evidence = marked = None
    if row["evidence"]:
        marked = [_shares(unit, row["evidence"]) for unit in units]
        if not any(marked):
            raise Malformed("the evidence is in no unit")
        covered = context.covers(map(entry.written.shifted, row["evidence"]))
        evidence = [*covered.tolist(), *[False] * len(behind)]
    ids = context.ids + behind
    position = len(ids) - 1
    more: Row = {}
    if kind.decoder:
        position = len(answer_so_far)
        more["decoder_input_ids"] = answer_so_far
    answer_spans, answer_parts = _sentences(entry, answer)
    return view_row(
        row,
        ids,
        [*context.special.tolist(), *[False] * len(behind)],
        position,
        target=answer.ids[-1],
        evidence=evidence,
        answer_ids=answer.ids,
        units=[*numbers, *[NO_UNIT] * len(behind)],
        unit_spans=list(map(list, units)),
        unit_evidence=marked,
        prompt=prompt.text,
        turns=None if prompt.turns is None else json.dumps(prompt.turns),
        answer=row["target"],
        answer_spans=answer_spans,
        answer_parts=answer_parts,
        **more,
    )


def _unit_of_tokens(entry: _Entry, context: Encoding) -> list[int]:
    """The number of each token's unit, NO_UNIT outside of units.

    Raises Malformed if units cover the whole prompt, and for a unit without a token.
    """
    shifted = [entry.written.shifted(unit) for unit in entry.units]
    numbers: list[int] = units_of_tokens(context.offsets, context.special, entry.written.text, shifted).tolist()
    if NO_UNIT not in numbers:
        raise Malformed("the units cover the whole prompt", "leave the question out of them: it is never removed")
    lacking = sorted(set(range(len(shifted))) - set(numbers))
    if lacking:
        start, end = entry.units[lacking[0]]
        raise Malformed("a unit has no token of its own", repr(entry.prompt.text[start:end])[:80])
    return numbers


def _sentences(entry: _Entry, answer: _Answer) -> tuple[list[list[int]], list[int]]:
    """(spans of the answer's sentences that have a token of their own, the number of each token's sentence)."""
    parts = units_of_tokens(answer.offsets, np.zeros(len(answer.ids), bool), entry.row["target"], entry.parts)
    spoken, parts = np.unique(parts, return_inverse=True)
    shift = int(spoken[0] == NO_UNIT)
    return [list(entry.parts[part]) for part in spoken[shift:]], (parts - shift).tolist()


def _shares(unit: Span, spans: Sequence[Sequence[int]]) -> bool:
    """True where a unit and one of the spans share a character."""
    return any(max(unit[0], start) < min(unit[1], end) for start, end in spans)
