"""The text of each token, and which tokens make up a word."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

START = "‹start›"  # what a decoder sees first, by whatever token


class Pieces:
    """The texts of a tokenizer's tokens; what was decoded once is remembered."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self._alone: dict[int, str] = {}
        self._behind: dict[tuple[int, int], str] = {}  # by the token before and the token
        self._usual: dict[int, str] = {}  # behind whatever token it was met last

    def of(self, ids: Sequence[int]) -> list[str]:
        """The text of each token; tokens at the start of a word include the space before it, for every tokenizer."""
        ids = list(ids)
        first, pairs = [self._text(token) for token in ids[:1]], list(pairwise(ids))
        texts = first + [self._usual_text(*pair) for pair in pairs]
        if "".join(texts) == self.tokenizer.decode(ids):
            return texts
        # What stands before decides: a character spans tokens, or a space comes behind some tokens alone.
        behind = {pair: self._text_behind(*pair) for pair in pairs}
        self._usual |= {token: text for (_, token), text in behind.items()}
        return first + [behind[pair] for pair in pairs]

    def _text(self, token: int) -> str:
        if token not in self._alone:
            self._alone[token] = self.tokenizer.decode([token])
        return self._alone[token]

    def _usual_text(self, before: int, token: int) -> str:
        text = self._usual.get(token)
        return self._text_behind(before, token) if text is None else text

    def _text_behind(self, before: int, token: int) -> str:
        """The text of a token behind another one; by itself where the two make other characters together."""
        pair = before, token
        if pair not in self._behind:
            together, first = self.tokenizer.decode(list(pair)), self._text(before)
            self._behind[pair] = together[len(first) :] if together.startswith(first) else self._text(token)
            self._usual.setdefault(token, self._behind[pair])
        return self._behind[pair]


def pieces(tokenizer: Any, ids: Sequence[int]) -> list[str]:
    """The text of each token, as :class:`Pieces` has it."""
    return Pieces(tokenizer).of(ids)


def seen(tokenizer: Any, ids: Sequence[int]) -> list[str]:
    """The input of a decoder that has `ids` these tokens: the start token, then the text of each."""
    return [START, *pieces(tokenizer, ids)]


def words(tokens: Sequence[str], special: Sequence[bool]) -> list[list[int]]:
    """Indices of the tokens of each word, in order.

    A word begins at a piece that starts with a space. Special tokens are alone, and punctuation before and behind a
    word is apart from it.
    """
    groups: list[list[int]] = []
    for at, (token, alone) in enumerate(zip(tokens, special, strict=True)):
        begins = token[:1].isspace() or alone or special[at - 1] or not groups
        groups += [[at]] if begins else []
        if not begins:
            groups[-1].append(at)
    return [part for group in groups for part in _without_punctuation(group, tokens)]


def _without_punctuation(group: list[int], tokens: Sequence[str]) -> list[list[int]]:
    """The pieces before the first letter or digit of a group, those up to the last, and those behind."""
    lettered = [at for at, token in enumerate(group) if _has_letters(tokens[token])]
    if not lettered:
        return [group]
    first = lettered[0] if any(tokens[at].strip() for at in group[: lettered[0]]) else 0  # a space alone is no mark
    parts = group[:first], group[first : lettered[-1] + 1], group[lettered[-1] + 1 :]
    return [part for part in parts if part]


def _has_letters(piece: str) -> bool:
    """True of a piece with letters or digits, or a part of a character, which may be one."""
    return any(letter.isalnum() or letter == "�" for letter in piece)
