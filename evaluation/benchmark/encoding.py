"""Texts as a fast tokenizer encodes them: ids, the text and characters of each token, special tokens, and words."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from closelook.evaluation.benchmark.samples import UNSPACED_LETTERS, Malformed, Row
from closelook.lrp_core.records.types import UserError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

START = "‹start›"  # stands for the token that a decoder reads first, whatever its name
_CONTEXT = 8  # tokens before a token that may change its text, such as by a space
_PART_OF_CHARACTER = "\ufffd"  # what decoding gives for the first bytes of a character
_BYTES = 4  # of a character, at most
_WITHOUT_SPACES = re.compile(f"[{UNSPACED_LETTERS}]")

Segmenter = Callable[[str], Iterable[str]]  # splits a text into its words


@dataclass(frozen=True)
class Encoding:
    """The tokens of a text. *Special* ones are those that the tokenizer's template added; they cover no characters."""

    ids: list[int]  # [T]
    offsets: np.ndarray  # [T, 2], [start, end) in characters
    special: np.ndarray  # [T] bool
    sequence: np.ndarray | None = None  # [T] of a pair: 0 or 1, which text a token is of; -1 of special tokens
    types: list[int] | None = None  # [T] of a pair: the token types, where the tokenizer has them

    def __len__(self) -> int:
        """The number of tokens T."""
        return len(self.ids)

    def open_ended(self) -> Encoding:
        """The encoding without special tokens after the last ordinary one, for models that continue a text."""
        ordinary = (~self.special).nonzero()[0]
        return self._only(np.arange(ordinary[-1] + 1 if len(ordinary) else 0))

    def followed_by(self, ids: Sequence[int]) -> Encoding:
        """The encoding of a single text with further ordinary tokens behind it, which cover none of its characters."""
        offsets, special = np.zeros((len(ids), 2), np.int32), np.zeros(len(ids), bool)
        return Encoding([*self.ids, *ids], np.concatenate([self.offsets, offsets]), np.append(self.special, special))

    def without_second_opening(self) -> Encoding:
        """The encoding with its opening token once, where both the template and the text begin with it."""
        if len(self) < 2 or not self.special[0] or self.special[1] or self.ids[0] != self.ids[1]:
            return self
        return self._only(np.delete(np.arange(len(self)), 1))

    def _only(self, kept: np.ndarray) -> Encoding:
        """The encoding of the tokens at the indices `kept` alone."""
        sequence = None if self.sequence is None else self.sequence[kept]
        types = None if self.types is None else [self.types[index] for index in kept]
        return Encoding([self.ids[index] for index in kept], self.offsets[kept], self.special[kept], sequence, types)

    def covers(self, spans: Iterable[Sequence[int]], first: bool = False) -> np.ndarray:
        """The ordinary tokens that share a character with one of the spans, [T] bool; with `first` the first of each.

        Spans are of the first text of a pair.
        """
        ordinary = ~self.special & (True if self.sequence is None else self.sequence == 0)
        covered = np.zeros(len(self), dtype=bool)
        for start, end in spans:
            in_span = (np.maximum(self.offsets[:, 0], start) < np.minimum(self.offsets[:, 1], end)) & ordinary
            if first:
                in_span[in_span.argmax() + 1 :] = False
            covered |= in_span
        return covered

    def evidence(self, spans: Sequence[Sequence[int]], first: bool = False) -> np.ndarray | None:
        """The result of `covers`; None without spans. Raises Malformed if the spans have no token."""
        if not spans:
            return None
        covered = self.covers(spans, first)
        if not covered.any():
            raise Malformed("the evidence has no token")
        return covered


def encode(
    tokenizer: PreTrainedTokenizerBase,
    texts: list[str],
    template: bool = True,
    seconds: list[str] | None = None,
    max_length: int | None = None,
) -> list[Encoding]:
    """The encodings of `texts`, or of pairs with `seconds`; `template` adds the tokenizer's special tokens.

    A text of more than `max_length` tokens loses tokens at its end, of a pair the longer text; None cuts nothing. A
    text that begins with the token that the template puts first has this token once.
    """
    if not texts:
        return []
    typed = seconds is not None and "token_type_ids" in tokenizer.model_input_names
    batch = tokenizer(
        texts,
        seconds,
        add_special_tokens=template,
        truncation=False if max_length is None else "longest_first",
        max_length=max_length,
        return_offsets_mapping=True,
        return_special_tokens_mask=True,
        return_attention_mask=False,
        return_token_type_ids=typed,
        verbose=False,
    )
    encodings = []
    for index, ids in enumerate(batch["input_ids"]):
        offsets = np.array(batch["offset_mapping"][index], dtype=np.int32).reshape(-1, 2)
        encoding = Encoding(ids, offsets, np.array(batch["special_tokens_mask"][index], dtype=bool))
        if seconds is not None:
            sequence = np.array([-1 if number is None else number for number in batch.sequence_ids(index)])
            types = batch["token_type_ids"][index] if typed else None
            encoding = replace(encoding, sequence=sequence, types=types)
        encodings.append(encoding.without_second_opening())
    return encodings


def view_row(
    row: Row,
    encoding: Encoding,
    position: int,
    *,
    target: int | None,
    foil: int | None = None,
    evidence: np.ndarray | None = None,
    scope: np.ndarray | None = None,
    **more: Any,
) -> Row:
    """A row of the view schema: the sample `row` as the tokens of its encoding [T], with masks [T].

    The model predicts `target`, against `foil`, at `position`; `more` are further columns.
    """
    return {
        "sample_id": row["sample_id"],
        "input_ids": encoding.ids,
        "position": position,
        "target_id": target,
        "foil_id": foil,
        "evidence_mask": None if evidence is None else evidence.tolist(),
        "special_mask": encoding.special.tolist(),
        "scope_mask": None if scope is None else scope.tolist(),
        "length": len(encoding),
        **more,
    }


def with_specials(encoding: Encoding, tokenizer: PreTrainedTokenizerBase) -> Encoding:
    """`encoding` with special tokens marked that stand in the text itself, as chat templates write them."""
    special = np.isin(encoding.ids, tokenizer.all_special_ids)
    return replace(encoding, special=special)


def encoding_of_ids(
    ids: Sequence[int], tokenizer: PreTrainedTokenizerBase, after: Sequence[int] = ()
) -> tuple[Encoding, str]:
    """(the encoding of tokens by their `ids`, the text that they spell after the tokens `after`); nothing is tokenised.

    Each token's text is what decoding gains by it. A character that several tokens spell together, byte by byte,
    belongs to each of them.
    """
    context = list(after[-_CONTEXT:])
    known, begin, end = [*context, *ids], 0, len(context)
    text, offsets = "", []
    for at in range(len(context), len(known)):
        spelt = decoded(tokenizer, known[begin : at + 1])
        pending = at + 1 - end
        if spelt.endswith(_PART_OF_CHARACTER) and pending < _BYTES and at + 1 < len(known):
            continue
        piece = spelt[len(decoded(tokenizer, known[begin:end])) :]
        offsets += [(len(text), len(text) + len(piece))] * pending
        text += piece
        begin, end = end, at + 1
    cover = np.array(offsets, dtype=np.int32).reshape(-1, 2)
    return with_specials(Encoding(list(ids), cover, np.zeros(len(ids), bool)), tokenizer), text


def decoded(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> str:
    """The text of tokens, special tokens included, with spaces as they are."""
    return str(tokenizer.decode(list(ids), clean_up_tokenization_spaces=False))


def opening_of(tokenizer: PreTrainedTokenizerBase) -> str:
    """The special token with which a text may begin: the one that the template puts first, else BOS, else ""."""
    [encoding] = encode(tokenizer, ["a"])
    if not encoding.special[:1].any():
        return str(tokenizer.bos_token or "")
    return str(tokenizer.convert_ids_to_tokens(encoding.ids[0]))


def has_spaces(tokenizer: PreTrainedTokenizerBase) -> bool:
    """True if the tokenizer can write a space before a word; False where a space is an unknown character."""
    [encoding] = encode(tokenizer, [" "], template=False)
    return tokenizer.unk_token_id is None or tokenizer.unk_token_id not in encoding.ids


class Pieces:
    """The text of each token of a tokenizer; what was decoded once is kept."""

    def __init__(self, tokenizer: Any) -> None:
        """`tokenizer` is one of transformers."""
        self.tokenizer = tokenizer
        self._texts: dict[tuple[int, ...], str] = {}

    def of(self, ids: Sequence[int]) -> list[str]:
        """The text of each token; the first token of a word includes the space before it, for every tokenizer.

        It is what the token adds to the text of the token before it, or its text by itself if both together spell other
        characters.
        """
        return [self._decoded(token) for token in ids[:1]] + [self._behind(*pair) for pair in pairwise(ids)]

    def _decoded(self, *ids: int) -> str:
        if ids not in self._texts:
            self._texts[ids] = self.tokenizer.decode(list(ids))
        return self._texts[ids]

    def _behind(self, before: int, token: int) -> str:
        """The text of `token` after `before`."""
        first, together = self._decoded(before), self._decoded(before, token)
        return together[len(first) :] if together.startswith(first) else self._decoded(token)


def pieces(tokenizer: Any, ids: Sequence[int]) -> list[str]:
    """The text of each token (see :meth:`Pieces.of`)."""
    return Pieces(tokenizer).of(ids)


def seen(tokenizer: Any, ids: Sequence[int]) -> list[str]:
    """The texts of what a decoder reads that has written the tokens `ids`: START, then the text of each token."""
    return [START, *pieces(tokenizer, ids)]


class Word(NamedTuple):
    """A word: the indices of its tokens, and its text, with the space before it."""

    tokens: list[int]
    text: str


def words_of(
    tokenizer: Any,
    ids: Sequence[int],
    tokens: Sequence[str],
    special: Sequence[bool],
    segmenter: Segmenter | None = None,
) -> list[Word]:
    """The words of the tokens `ids` [T], which have the texts `tokens` (see :class:`Pieces`).

    Tokens that spell a character together, byte by byte, are in one word.
    """
    joined = _whole_characters(tokenizer, ids, tokens)
    return words([piece.text for piece in joined], [special[piece.tokens[0]] for piece in joined], joined, segmenter)


def _whole_characters(tokenizer: Any, ids: Sequence[int], tokens: Sequence[str]) -> list[Word]:
    """The tokens with their texts; those that spell a character together are joined."""
    is_part = [text == "" or _PART_OF_CHARACTER in text for text in tokens]
    joined, start = [], 0
    while start < len(tokens):
        end, text = start + 1, tokens[start]
        while _PART_OF_CHARACTER in text and end < min(len(tokens), start + _BYTES) and is_part[end]:
            end += 1
            text = decoded(tokenizer, ids[start:end])
        joined.append(Word(list(range(start, end)), text))
        start = end
    return joined


def named(tokens: Sequence[str], ids: Sequence[int]) -> list[str]:
    """The texts of tokens as they are shown: a token without a text of its own is shown by its id.

    >>> named([" the", "", "\ufffd"], [5, 6, 7])
    [' the', '‹6›', '‹7›']
    """
    has_text = [text.strip(_PART_OF_CHARACTER) != "" for text in tokens]
    return [text if is_shown else f"‹{at}›" for text, is_shown, at in zip(tokens, has_text, ids, strict=True)]


def words(
    texts: Sequence[str],
    special: Sequence[bool],
    joined: Sequence[Word] | None = None,
    segmenter: Segmenter | None = None,
) -> list[Word]:
    """The words of pieces [P] with these `texts`; `special` [P] marks special tokens.

    A word begins at a piece that starts with a space or follows a special token. A special token is a word of its own,
    and so is the punctuation before or after a word. Scripts without spaces, such as Chinese, Japanese and Thai, are
    split into pieces, or where `segmenter`, a function from a text to the list of its words, splits them. `joined` has
    the tokens of each piece; None: a piece is a token.
    """
    groups: list[list[int]] = []
    for at, (text, is_special) in enumerate(zip(texts, special, strict=True)):
        if at == 0 or text[:1].isspace() or is_special or special[at - 1]:
            groups.append([at])
        else:
            groups[-1].append(at)
    split = []
    for group in groups:
        for run in _without_spaces(group, texts, segmenter):
            for part in _without_punctuation(run, texts):
                tokens = part if joined is None else [token for at in part for token in joined[at].tokens]
                split.append(Word(tokens, "".join(texts[at] for at in part)))
    return split


def _without_spaces(group: list[int], texts: Sequence[str], segmenter: Segmenter | None) -> Iterator[list[int]]:
    """A group of indices of pieces, split beside characters of scripts without spaces, or where `segmenter` splits."""
    text = "".join(texts[at] for at in group)
    if not _WITHOUT_SPACES.search(text):
        yield group
        return
    ends = None if segmenter is None else _ends(segmenter, text)
    run, end = [group[0]], len(texts[group[0]])
    for at in group[1:]:
        if texts[at] and (_is_border(text, end) if ends is None else end in ends):
            yield run
            run = []
        run.append(at)
        end += len(texts[at])
    yield run


def _is_border(text: str, at: int) -> bool:
    """True if the character before or at index `at` is of a script without spaces, and none is a mark on the other."""
    beside = text[max(at - 1, 0) : at + 1]
    return bool(_WITHOUT_SPACES.search(beside)) and not _only_marks(text[at : at + 1])


def _ends(segmenter: Segmenter, text: str) -> set[int]:
    """The ends of the words of a text, by the segmenter. Raises UserError if it changes the text."""
    bare = text.strip()
    segments = [str(segment) for segment in segmenter(bare)]
    if "".join(segments) != bare:
        raise UserError(f"the segmenter turns {bare!r} into {segments}: it must return parts that join to the text")
    start = len(text) - len(text.lstrip())
    return {start + end for end in accumulate(map(len, segments))}


def _without_punctuation(group: list[int], tokens: Sequence[str]) -> list[list[int]]:
    """A group of token indices in up to three parts: before the first token with a letter, up to the last, and after.

    Digits count as letters, and combining marks as the character before them, such as vowels of Hindi. White space
    alone before the first letter is no part of its own.
    """
    lettered: list[int] = []
    for at, token in enumerate(group):
        if _has_letters(tokens[token]) or (at - 1 in lettered and _only_marks(tokens[token])):
            lettered.append(at)
    if not lettered:
        return [group]
    first = lettered[0] if any(tokens[at].strip() for at in group[: lettered[0]]) else 0  # a space alone is no mark
    parts = group[:first], group[first : lettered[-1] + 1], group[lettered[-1] + 1 :]
    return [part for part in parts if part]


def _has_letters(piece: str) -> bool:
    """True for a text with letters or digits; also for bytes of a character, which may be a letter."""
    return any(letter.isalnum() or letter == _PART_OF_CHARACTER for letter in piece)


def _only_marks(piece: str) -> bool:
    """True for a text of combining marks alone; False for an empty text."""
    return piece != "" and all(unicodedata.category(mark).startswith("M") for mark in piece)
