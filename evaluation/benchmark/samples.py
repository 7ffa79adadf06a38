"""Generic samples and rejects: how a row is made, named, checked and read as a sentence, and chats as a text."""

from __future__ import annotations

import hashlib
import json
import math
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

Row = dict[str, Any]
Span = tuple[int, int]  # [start, end) in characters
Turn = tuple[str, int, int]  # the role of a chat's message, and where its content starts and ends
SEPARATOR = "\n\n"  # between the messages of a chat
#: Which tokens of target and foil are explained: the only one of each, the first in which they differ, or all of an
#: answer.
Words = Literal["single", "first_difference", "all"]
UnitKind = Literal["word", "sentence", "passage", "turn"]  # the parts of a prompt that are removed one by one


class Beginning(NamedTuple):
    """The reading of texts without a slot: the model reads their first `tokens`, and the next token is explained."""

    tokens: int
    explains: Literal["prediction", "true"]  # the token that the model predicts there, or the one that follows


class Malformed(ValueError):
    """A record that cannot become a sample, with a reason that many records share and a detail of this record."""

    def __init__(self, reason: str, detail: str | None = None) -> None:
        """The message is `reason`, or "reason: detail"."""
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
    meta: dict[str, Any] | None = None,
    cluster: str | None = None,
) -> Row:
    """A row of the generic schema; its `sample_id` is a hash of its texts, slot, target, foil, label and score.

    `slot` is the offset in `text` at which `target` goes; spans of `evidence` and `scope` are [start, end) in
    characters. `evidence` is empty where an annotator has still to find it. A text that a model continues, and one
    with a gold `label` or `score`, has no `slot`, `target` and `foil`. `second` is the second text of a pair, `cluster`
    the name of the sample's cluster.

    Raises Malformed for an empty text or target, a target that equals its foil, offsets outside the text, a span around
    the slot, and a score that is not finite.
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
    content: list[str | float | None] = [text, slot, target, foil]
    if (second, label, score) != (None, None, None):
        content += [second, label, score]
    return {
        "sample_id": hash_of(content)[:20],
        "source": source,
        "text": text,
        "slot": slot,
        "target": target,
        "foil": foil,
        "second": second,
        "label": label,
        "score": score,
        "evidence": list(map(list, evidence)),
        "scope": None if scope is None else list(map(list, scope)),
        "meta": _json(meta or {}),
        "image": None,
        "regions": None,
        "cluster": cluster,
    }


def hash_of(content: list[Any]) -> str:
    """A sha256 of JSON values, in hex."""
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def reject(
    stage: str, reason: str, *, sample_id: str | None = None, where: str | None = None, detail: str | None = None
) -> Row:
    """A row of the reject schema; `stage` is source, annotate or view."""
    return {"sample_id": sample_id, "stage": stage, "reason": reason, "where": where, "detail": detail}


@contextmanager
def rejecting(
    rejects: list[Row], stage: str, *, sample_id: str | None = None, where: str | None = None
) -> Iterator[None]:
    """Turns Malformed into a reject: if the block raises it, the block ends and the reject is appended to `rejects`."""
    try:
        yield
    except Malformed as error:
        rejects.append(reject(stage, error.reason, sample_id=sample_id, where=where, detail=error.detail))


def is_reject(row: Row) -> bool:
    """True for a row of the reject schema, False for a sample."""
    return "reason" in row


def meta_of(row: Row) -> dict[str, Any]:
    """The notes of the source and the annotator about a sample, by name."""
    meta: dict[str, Any] = json.loads(row["meta"])
    return meta


def with_evidence(row: Row, evidence: Sequence[Span], **meta: Any) -> Row:
    """`row` with its evidence and what the annotator noted. Raises Malformed for a span outside the text."""
    for span in evidence:
        _check(span, row["text"], row["slot"])
    return with_meta(row, **meta) | {"evidence": [list(span) for span in evidence]}


def with_meta(row: Row, **meta: Any) -> Row:
    """`row` with further entries of `meta`."""
    return row | {"meta": _json(meta_of(row) | meta)}


#: Letters of scripts that put no spaces between words, as in a regular expression: Thai, Lao, Tibetan, Burmese, Khmer,
#: kana, Han.
UNSPACED_LETTERS = (
    "\u0e00-\u109f\u1780-\u17ff\u3005-\u3007\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
    "\uff66-\uff9f\U00020000-\U0003ffff"
)
_UNSPACED = re.compile(f"[{UNSPACED_LETTERS}\u3000-\u303f\uff00-\uffef]")  # and their punctuation
_JOINING = re.compile(r"\S[-–—/]$")  # the end of a text that goes on without a space
_ATTACHED = re.compile(r"[,.;:!?%…]|'\w")  # the beginning of a word that follows without a space, such as 's


def _goes_on_unspaced(text: str) -> bool:
    """True if no space is written after `text`: it ends in an opening bracket or quote, a hyphen, or such a script."""
    opens = unicodedata.category(text[-1]) in ("Ps", "Pi") or (text[-1] == '"' and text.count('"') % 2 == 1)
    return opens or bool(_UNSPACED.match(text[-1]) or _JOINING.search(text))


def _follows_unspaced(word: str) -> bool:
    """True if no space is written before `word`: it begins with closing punctuation, or with such a script."""
    closes = unicodedata.category(word[0]) in ("Pe", "Pf")
    return closes or bool(_UNSPACED.match(word) or _ATTACHED.match(word))


class Prompt(NamedTuple):
    """The text that a model reads before a slot, and the space between this text and the target."""

    text: str
    space: str  # directly before the target: " " or ""
    is_added: bool = False  # the space is not in the text: words that follow without a space do not get it

    @classmethod
    def of(cls, before: str, has_spaces: bool = True) -> Prompt:
        """The prompt of the text `before` a slot.

        A space at the end of the text belongs to the target, as tokenizers put spaces at the beginning of tokens. If
        the text ends in no white space, the target gets a space too, unless none is written there: after an opening
        bracket, or in Chinese. `has_spaces` is False for a tokenizer without tokens for spaces: its targets get none.
        """
        read = before.removesuffix(" ")
        if not (before and has_spaces):
            return cls(read, "")
        if read != before:
            return cls(read, " ")
        if before[-1].isspace() or _goes_on_unspaced(before):
            return cls(read, "")
        return cls(read, " ", is_added=True)

    def space_before(self, word: str) -> str:
        """The space between the text and `word`."""
        return "" if self.is_added and _follows_unspaced(word) else self.space

    def with_target(self, word: str) -> str:
        """The text with `word` behind it."""
        return f"{self.text}{self.space_before(word)}{word}"


@dataclass(frozen=True)
class Filled:
    """A sample's text with a word in its slot; spaces are added where the text has none around the slot."""

    text: str
    word: Span
    slot: int  # in the sample's text
    tail: int  # where the sample's text goes on after the word

    @classmethod
    def of(cls, text: str, slot: int, word: str) -> Filled:
        """`text` with `word` at the offset `slot`."""
        before, after = text[:slot], text[slot:]
        start = len(before) + bool(before and not before[-1].isspace())
        end = start + len(word)
        tail = end + after[:1].isalnum()
        return cls(before.ljust(start) + word.ljust(tail - start) + after, (start, end), slot, tail)

    def shifted(self, span: Sequence[int]) -> Span:
        """A span [start, end) of the sample's text, moved to where it lies in the filled text."""
        start, end = span
        shift = self.tail - self.slot if end > self.slot else 0
        return start + shift, end + shift

    def origin(self, span: Span) -> Span:
        """A span [start, end) of the filled text outside the word, moved to where it lies in the sample's text."""
        start, end = span
        shift = self.tail - self.slot if start >= self.tail else 0
        return start - shift, end - shift


def _check(span: Sequence[int], text: str, slot: int | None) -> None:
    """Raises Malformed for a span that is empty, outside of the text or around the slot."""
    start, end = span
    if not 0 <= start < end <= len(text):
        raise Malformed("span outside the text", f"[{start}, {end}) of {len(text)} characters")
    if slot is not None and start < slot < end:
        raise Malformed(
            "span across the slot", f"give [{start}, {slot}) and [{slot}, {end}) instead of [{start}, {end})"
        )


def _json(meta: dict[str, Any]) -> str:
    """`meta` as JSON that is the same for the same content: names are sorted."""
    return json.dumps(meta, ensure_ascii=False, sort_keys=True)


def chat_of(messages: Sequence[Mapping[str, Any]]) -> tuple[str, list[Turn]]:
    """(the joined contents of a chat's messages, the turns that locate them in this text).

    Raises Malformed for a message without text as `role` and `content`, and for a chat without messages.

    >>> chat_of([{"role": "user", "content": "Hello?"}, {"role": "assistant", "content": "Yes."}])
    ('Hello?\\n\\nYes.', [('user', 0, 6), ('assistant', 8, 12)])
    """
    text, turns = "", list[Turn]()
    for message in messages:
        if not isinstance(message, Mapping) or not all(isinstance(message.get(k), str) for k in ("role", "content")):
            raise Malformed("a message without text as `role` and `content`", repr(message)[:80])
        text += SEPARATOR if turns else ""
        turns.append((message["role"], len(text), len(text) + len(message["content"])))
        text += message["content"]
    if not turns:
        raise Malformed("no messages")
    return text, turns
