"""Explained texts as tidy tables: a row for each word, and one for each token, of a text under a method.

Tokens are located in the user's text: the characters that each stands for.

Shapes: N texts, T tokens of a text, W its words.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from closelook.evaluation.benchmark.encoding import Encoding, Word, encode, words
from closelook.evaluation.benchmark.samples import Filled
from closelook.evaluation.schema import TOKENS, WORDS

TEXT, SECOND, DECODER = "text", "second", "decoder"  # the sides that a model reads

#: Rows of a table: values that all of them share, kept once, and columns with a value for each row.
Block = tuple[dict[str, Any], dict[str, Any]]


class TokenLocation(NamedTuple):
    """The location of a token: its side and the characters [start, end) of that side's text; None if it has none."""

    side: str
    start: int | None = None
    end: int | None = None


@dataclass(frozen=True)
class MethodRelevance:
    """The relevance of a text's tokens by a method, for an explained number."""

    method: str
    explanation: str
    embedding: str
    explained: float
    #: [T] in the order of the text's tokens. A method that gives no relevance to what a decoder has seen has fewer.
    relevance: np.ndarray
    conserves: bool  # True: the method conserves the explained number, so that a word has the sum of its tokens


@dataclass(frozen=True)
class ExplainedText:
    """A text as the model read it, with the model's decision and the relevance by each method.

    Tokens [T] are those of the text, then of the second text of a pair, then those that a decoder has seen.
    """

    sides: Mapping[str, str]  # the text of each side as the user wrote it
    tokens: Sequence[str]
    special: Sequence[bool]
    locations: Sequence[TokenLocation]
    decision: str | None
    against: str | None
    probability: float | None
    by_method: Sequence[MethodRelevance]


class Tables(NamedTuple):
    """Rows of the schemas WORDS and TOKENS."""

    words: pa.Table
    tokens: pa.Table


def tables(texts: Iterable[tuple[str, ExplainedText]], model: str, task: str | None = None) -> Tables:
    """The words and tokens of texts, each with its id, as tables, text by text, method by method.

    A word's relevance is the sum over its tokens if the method conserves the explained number, else their mean.
    """
    by_word: list[Block] = []
    by_token: list[Block] = []
    for name, text in texts:
        known: dict[int, _Groups] = {}
        for entry in text.by_method:
            count = len(entry.relevance)
            if count not in known:
                known[count] = _Groups.of(text, count)
            groups = known[count]
            shared = _facts(name, text, entry, model, task)
            sums = np.add.reduceat(entry.relevance.astype(np.float64), groups.starts)
            of_words = groups.of_words | {"relevance": sums if entry.conserves else sums / groups.sizes}
            by_word.append((shared | {"summed": entry.conserves}, of_words))
            by_token.append((shared, groups.of_tokens | {"relevance": entry.relevance}))
    return Tables(_table(WORDS, by_word), _table(TOKENS, by_token))


def _facts(name: str, text: ExplainedText, entry: MethodRelevance, model: str, task: str | None) -> dict[str, Any]:
    """The columns that have the same value in all rows of a text and method."""
    return {
        "id": name,
        "row": None,
        "model": model,
        "task": task,
        "method": entry.method,
        "explanation": entry.explanation,
        "embedding": entry.embedding,
        "explained": entry.explained,
        "decision": text.decision,
        "against": text.against,
        "probability": text.probability,
    }


@dataclass(frozen=True)
class _Groups:
    """The words of a text, and the columns of their rows and of token rows that do not depend on the method."""

    starts: np.ndarray  # [W] the first token of each word
    sizes: np.ndarray  # [W]
    of_words: dict[str, Any]
    of_tokens: dict[str, Any]

    @classmethod
    def of(cls, text: ExplainedText, count: int) -> _Groups:
        """The words of the first `count` tokens of a text, those to which a method gives relevance."""
        locations, special = text.locations[:count], list(map(bool, text.special[:count]))
        groups = _words_of(text, count)
        sizes = np.array([len(group) for group in groups], np.int64)
        sides = [locations[group[0]].side for group in groups]
        extents = [_extent([locations[at] for at in group]) for group in groups]
        words = [_word(text, group, *extent) for group, extent in zip(groups, extents, strict=True)]
        of_words = {
            "side": sides,
            "at": _counted(sides),
            "word": words,
            "special": [special[group[0]] for group in groups],
            "start": [start for start, _ in extents],
            "end": [end for _, end in extents],
            "tokens": sizes,
        }
        token_sides = [location.side for location in locations]
        of_tokens = {
            "side": token_sides,
            "at": _counted(token_sides),
            "token": text.tokens[:count],
            "special": special,
            "start": [location.start for location in locations],
            "end": [location.end for location in locations],
            "word_at": np.repeat(np.array(of_words["at"], np.int64), sizes),
        }
        return cls(np.array([group[0] for group in groups], np.int64), sizes, of_words, of_tokens)


def _word(text: ExplainedText, group: Sequence[int], start: int | None, end: int | None) -> str:
    """The word of the tokens `group`: the user's characters [start, end), or the tokens' own text if these are None."""
    if start is not None:
        return text.sides[text.locations[group[0]].side][start:end]
    return "".join(text.tokens[at] for at in group).strip()


def _words_of(text: ExplainedText, count: int) -> list[list[int]]:
    """The indices of the tokens of each word among the first `count` tokens; no word has tokens of two sides."""
    groups = []
    for _, run in groupby(range(count), key=lambda at: text.locations[at].side):
        joined = list(_whole_characters(text, list(run)))
        special = [bool(text.special[piece.tokens[0]]) for piece in joined]
        groups += [word.tokens for word in words([piece.text for piece in joined], special, joined)]
    return groups


def _whole_characters(text: ExplainedText, tokens: Sequence[int]) -> Iterator[Word]:
    """Yield the tokens with their texts; those that share a character of the user's text are joined, and have its."""
    joined: list[list[int]] = []
    for at in tokens:
        start, end = text.locations[at].start, None if not joined else text.locations[joined[-1][-1]].end
        if start is not None and end is not None and start < end:
            joined[-1].append(at)
        else:
            joined.append([at])
    for group in joined:
        spelt = "".join(text.tokens[at] for at in group)
        if len(group) > 1:
            space = " " if spelt[:1].isspace() else ""
            spelt = space + _word(text, group, *_extent([text.locations[at] for at in group]))
        yield Word(group, spelt)


def _counted(sides: Sequence[str]) -> list[int]:
    """For each entry of `sides` how many entries of the same side come before it.

    >>> _counted(["text", "text", "second"])
    [0, 1, 0]
    """
    met = Counter[str]()
    numbers = []
    for side in sides:
        numbers.append(met[side])
        met[side] += 1
    return numbers


def _extent(locations: Sequence[TokenLocation]) -> tuple[int | None, int | None]:
    """The characters [start, end) from a word's first token to its last; (None, None) if they have no characters."""
    starts = [location.start for location in locations if location.start is not None]
    ends = [location.end for location in locations if location.end is not None]
    return (min(starts), max(ends)) if starts and ends else (None, None)


def _table(schema: pa.Schema, blocks: Sequence[Block]) -> pa.Table:
    """The rows of all `blocks` as a table of `schema`."""
    counts = np.array([len(columns["relevance"]) for _, columns in blocks], int)
    rows = pa.array(np.repeat(np.arange(len(blocks)), counts))
    return pa.Table.from_arrays([_column(field, blocks, rows) for field in schema], schema=schema)


def _column(field: pa.Field, blocks: Sequence[Block], rows: pa.Array) -> pa.Array:
    """A column of a table; `rows` has the number of its block for each row."""
    own = [pa.array(columns[field.name], field.type) for _, columns in blocks if field.name in columns]
    if own:
        return pa.concat_arrays(own)
    return pa.array([shared[field.name] for shared, _ in blocks], field.type).take(rows)


@dataclass(frozen=True)
class ReadText:
    """The text that the tokenizer reads for a sample, and how its characters map to those of the sample's text."""

    text: str
    second: str | None = None  # the second text of a pair
    filled: Filled | None = None  # the text with a mask token in its slot, if it has one
    mark: int = 0  # length of the marker in the slot of the text as the user wrote it, such as `___`
    from_start: bool = False  # True: a text that is too long was cut at its beginning

    def located(self, side: str, start: int, end: int) -> TokenLocation:
        """The location of a token that covers the characters [start, end) of the text read; spaces do not count."""
        text = self.second if side == SECOND else self.text
        assert text is not None
        covered = text[start:end]
        start += len(covered) - len(covered.lstrip())
        end = max(start, end - (len(covered) - len(covered.rstrip())))
        if start == end:
            return TokenLocation(side)
        if side == TEXT and self.filled is not None:
            return self._beside_mask(start, end)
        return TokenLocation(side, start, end)

    def _beside_mask(self, start: int, end: int) -> TokenLocation:
        """The location of a token of a text with a mask token; the mask token itself has no characters."""
        assert self.filled is not None
        mask_start, mask_end = self.filled.word
        if start < mask_end and end > mask_start:
            return TokenLocation(TEXT)
        low, high = self.filled.origin((start, end))
        shift = self.mark if start >= mask_end else 0
        return TokenLocation(TEXT, low + shift, high + shift)


def locate(tokenizer: Any, reads: Sequence[ReadText], ids: Sequence[Sequence[int]]) -> list[list[TokenLocation]]:
    """The location of every token of each text in `reads` [N]; `ids` has the tokens [T] that the model read of each."""
    located: list[list[TokenLocation]] = [[] for _ in reads]
    for paired in (False, True):  # a tokenizer encodes texts and pairs in separate calls
        alike = [at for at, read in enumerate(reads) if (read.second is not None) == paired]
        seconds = [reads[at].second or "" for at in alike] if paired else None
        encodings = encode(tokenizer, [reads[at].text for at in alike], seconds=seconds)
        for at, encoding in zip(alike, encodings, strict=True):
            located[at] = _of_row(tokenizer, reads[at], encoding, list(ids[at]))
    return located


def _of_row(tokenizer: Any, read: ReadText, encoding: Encoding, ids: list[int]) -> list[TokenLocation]:
    """The location of each of the `ids` [T] that a model read of a text; `encoding` is the whole text's."""
    if read.second is not None and len(ids) < len(encoding):  # both texts lose tokens, as the tokenizer cuts pairs
        [encoding] = encode(tokenizer, [read.text], seconds=[read.second], max_length=len(ids))
    locations = []
    for index in _matched(ids, encoding, read.from_start):
        if index is None:
            locations.append(TokenLocation(TEXT))
            continue
        side = TEXT
        if encoding.sequence is not None and (encoding.sequence[: index + 1] == 1).any():
            side = SECOND
        special = bool(encoding.special[index])
        locations.append(TokenLocation(side) if special else read.located(side, *map(int, encoding.offsets[index])))
    return locations


def _matched(ids: Sequence[int], encoding: Encoding, from_start: bool) -> list[int | None]:
    """The index in `encoding` of each of `ids` [T]; None for a token that the encoding lacks.

    The text may have been cut: then one run of the encoding's tokens is missing in `ids`. It lies at the beginning of
    the ordinary tokens (`from_start`) or at their end, so that tokens are matched from both ends.
    """
    every, count = encoding.ids, len(ids)
    opening = 0
    while opening < min(count, len(every)) and encoding.special[opening] and ids[opening] == every[opening]:
        opening += 1
    most = opening if from_start and count < len(every) else min(count, len(every))
    front = 0
    while front < most and ids[front] == every[front]:
        front += 1
    back = 0
    while back < min(count, len(every)) - front and ids[count - 1 - back] == every[len(every) - 1 - back]:
        back += 1
    middle: list[int | None] = [None] * (count - front - back)
    return [*range(front), *middle, *range(len(every) - back, len(every))]
