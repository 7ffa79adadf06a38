"""Generic samples and rejects: how a row is made, named, checked and read as a sentence."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

Row = dict[str, Any]
Span = tuple[int, int]  # [start, end) in characters
#: Target and foil are one token each, the first that differs counts, or a target is an answer, explained as a whole.
Words = Literal["single", "first_difference", "all"]
UnitKind = Literal["word", "sentence", "passage", "turn"]  # of a prompt: what stays or goes together


class Beginning(NamedTuple):
    """The question about texts without a slot: their first `tokens` are read, and the next one is explained."""

    tokens: int
    explains: Literal["prediction", "true"]  # the token that the model predicts there, or the one that follows


class Malformed(ValueError):
    """A record that cannot become a sample, with a reason that many records share and a detail of this record."""

    def __init__(self, reason: str, detail: str | None = None) -> None:
        super().__init__(reason if detail is None else f"{reason}: {detail}")
        self.reason, self.detail = reason, detail


def sample(
    source: str,
    text: str,
    slot: int | None = None,
    target: str | None = None,
    foil: str | None = None,
    *,
    second: str | None = None,
    label: str | None = None,
    score: float | None = None,
    evidence: Sequence[Span] = (),
    scope: Sequence[Span] | None = None,
    meta: Mapping[str, Any] | None = None,
) -> Row:
    """A row of the generic schema, named by its content. `evidence` stays empty until an annotator has found it.

    A text that a model is to go on with has no `slot`, no `target` and no `foil`. Nor has one with a gold `label` or
    `score`, which may be the first of a pair.

    Raises Malformed for an empty text or target, a target that equals its foil, offsets outside the text, and a score
    that is no number.
    """
    if not text.strip():
        raise Malformed("empty text")
    if second is not None and not second.strip():
        raise Malformed("empty second text")
    if score is not None and not math.isfinite(score):
        raise Malformed("the score is no number", str(score))
    if slot is not None and target is not None:
        if not target.strip() or (foil is not None and not foil.strip()):
            raise Malformed("empty target or foil")
        if foil is not None and target.split() == foil.split():
            raise Malformed("target equals foil", target)
        if not 0 <= slot <= len(text):
            raise Malformed("slot outside the text", f"{slot} of {len(text)} characters")
    for span in (*evidence, *(scope or ())):
        _check(span, text, slot)
    labelled = (second, label, score) != (None, None, None)
    content = json.dumps([text, slot, target, foil, *([second, label, score] if labelled else [])])
    return {
        "sample_id": hashlib.sha256(content.encode()).hexdigest()[:20],
        "source": source,
        "text": text,
        "slot": slot,
        "target": target,
        "foil": foil,
        "second": second,
        "label": label,
        "score": score,
        "evidence": [list(span) for span in evidence],
        "scope": None if scope is None else [list(span) for span in scope],
        "meta": _json(meta or {}),
        "image": None,
        "regions": None,
        "cluster": None,
    }


def reject(
    stage: str, reason: str, *, sample_id: str | None = None, where: str | None = None, detail: str | None = None
) -> Row:
    """A row of the reject schema; `stage` is source, annotate or view."""
    return {"sample_id": sample_id, "stage": stage, "reason": reason, "where": where, "detail": detail}


@contextmanager
def rejecting(
    rejects: list[Row], stage: str, *, sample_id: str | None = None, where: str | None = None
) -> Iterator[None]:
    """Appends the reject of a row that turns out Malformed inside the `with`, which ends there."""
    try:
        yield
    except Malformed as error:
        rejects.append(reject(stage, error.reason, sample_id=sample_id, where=where, detail=error.detail))


def is_reject(row: Row) -> bool:
    return "reason" in row


def meta_of(row: Row) -> dict[str, Any]:
    """The notes of its source and of the annotator about a sample."""
    meta: dict[str, Any] = json.loads(row["meta"])
    return meta


def view_row(
    row: Row,
    ids: Sequence[int],
    special: Sequence[bool],
    position: int,
    *,
    target: int | None = None,
    foil: int | None = None,
    evidence: Sequence[bool] | None = None,
    scope: Sequence[bool] | None = None,
    **more: Any,
) -> Row:
    """A row of the view schema: the sample `row` as token `ids` [T], with masks [T].

    The model predicts `target`, against `foil`, at `position`; `more` are further columns.
    """
    return {
        "sample_id": row["sample_id"],
        "input_ids": ids,
        "position": position,
        "target_id": target,
        "foil_id": foil,
        "evidence_mask": evidence,
        "special_mask": special,
        "scope_mask": scope,
        "length": len(ids),
        **more,
    }


def with_evidence(row: Row, evidence: Sequence[Span], **meta: Any) -> Row:
    """`row` with its evidence and what the annotator noted. Raises Malformed for a span outside the text."""
    for span in evidence:
        _check(span, row["text"], row["slot"])
    return with_meta(row, **meta) | {"evidence": [list(span) for span in evidence]}


def with_meta(row: Row, **meta: Any) -> Row:
    """`row` with further entries of `meta`."""
    return row | {"meta": _json({**meta_of(row), **meta})}


class Prompt(NamedTuple):
    """The text that a model reads before a slot, and the space that belongs to the target behind it."""

    text: str
    space: str  # directly before the target: " " or ""

    @classmethod
    def of(cls, before: str, has_spaces: bool = True) -> Prompt:
        """The space between the text `before` a slot and the target: an ordinary space at the end belongs to the
        target.

        Every other character is read. Targets of a tokenizer that has no spaces (`has_spaces`) are spelled without one.
        """
        read = before.removesuffix(" ")
        belongs = has_spaces and before and (read != before or not before[-1].isspace())
        return cls(read, " " if belongs else "")

    def with_target(self, word: str) -> str:
        return f"{self.text}{self.space}{word}"


@dataclass(frozen=True)
class Filled:
    """A sample's text with a word in its slot, set apart by spaces where the text has none."""

    text: str
    word: Span
    slot: int  # in the sample's text
    tail: int  # where the sample's text goes on after the word

    @classmethod
    def of(cls, text: str, slot: int, word: str) -> Filled:
        before, after = text[:slot], text[slot:]
        start = len(before) + bool(before and not before[-1].isspace())
        end = start + len(word)
        tail = end + after[:1].isalnum()
        return cls(before.ljust(start) + word.ljust(tail - start) + after, (start, end), slot, tail)

    def shifted(self, span: Sequence[int]) -> Span:
        """The span in the filled text of a span of the sample's text."""
        start, end = span
        shift = self.tail - self.slot if end > self.slot else 0
        return start + shift, end + shift

    def origin(self, span: Span) -> Span:
        """The span in the sample's text of a span of the filled text beside the word."""
        start, end = span
        shift = self.tail - self.slot if start >= self.tail else 0
        return start - shift, end - shift


def _check(span: Sequence[int], text: str, slot: int | None) -> None:
    start, end = span
    if not 0 <= start < end <= len(text):
        raise Malformed("span outside the text", f"[{start}, {end}) of {len(text)} characters")
    if slot is not None and start < slot < end:
        raise Malformed("span across the slot", f"[{start}, {end}) around {slot}")


def _json(meta: Mapping[str, Any]) -> str:
    return json.dumps(dict(meta), ensure_ascii=False, sort_keys=True)
