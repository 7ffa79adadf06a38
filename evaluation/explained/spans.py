"""The characters of a text that each token read by a model stands for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from evaluation.benchmark.encoding import Encoding, encode
from evaluation.benchmark.samples import Filled

TEXT, SECOND, DECODER = "text", "second", "decoder"  # the sides that a model reads


class TokenLocation(NamedTuple):
    """The location of a token: its side, and [start, end) in characters of that text; None: it has no characters."""

    side: str
    start: int | None = None
    end: int | None = None


@dataclass(frozen=True)
class ReadText:
    """The text that the tokenizer reads for a sample, and the offsets of its characters in the sample's text."""

    text: str
    second: str | None = None  # of a pair
    filled: Filled | None = None  # the text with a mask in its slot
    mark: int = 0  # characters of a mark that stands in the slot of the sample's own text
    from_start: bool = False  # a text that is too long loses its beginning

    def located(self, side: str, start: int, end: int) -> TokenLocation:
        """The location of a token that covers [start, end) of the text read, spaces around it left out."""
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
        assert self.filled is not None
        mask_start, mask_end = self.filled.word
        if start < mask_end and end > mask_start:
            return TokenLocation(TEXT)
        low, high = self.filled.origin((start, end))
        shift = self.mark if start >= mask_end else 0
        return TokenLocation(TEXT, low + shift, high + shift)


def locate(tokenizer: Any, reads: Sequence[ReadText], ids: Sequence[Sequence[int]]) -> list[list[TokenLocation]]:
    """The location of every token of rows [N, T], the `ids` that a model read of the texts `reads` [N]."""
    located: list[list[TokenLocation]] = [[] for _ in reads]
    for paired in (False, True):
        alike = [at for at, read in enumerate(reads) if (read.second is not None) == paired]
        seconds = [reads[at].second or "" for at in alike] if paired else None
        encodings = encode(tokenizer, [reads[at].text for at in alike], seconds=seconds)
        for at, encoding in zip(alike, encodings, strict=True):
            located[at] = _of_row(tokenizer, reads[at], encoding, list(ids[at]))
    return located


def _of_row(tokenizer: Any, read: ReadText, encoding: Encoding, ids: list[int]) -> list[TokenLocation]:
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
    """For each of `ids` [T] its index in the encoding, of which one run of tokens may be missing; None: it has none.

    The run was cut from the start of the ordinary tokens, or is followed by none but special ones.
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
