"""Locates the tokens that a model read in the user's text: the characters that each stands for.

Shapes: N texts, T tokens of a text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from evaluation.benchmark.encoding import Encoding, encode
from evaluation.benchmark.samples import Filled

TEXT, SECOND, DECODER = "text", "second", "decoder"  # the sides that a model reads


class TokenLocation(NamedTuple):
    """The location of a token: its side and the characters [start, end) of that side's text; None if it has none."""

    side: str
    start: int | None = None
    end: int | None = None


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
    """The location of every token that a model read: of each text in `reads` [N] its token `ids` [T]."""
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
