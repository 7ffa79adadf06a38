"""The text of each token, and which tokens make up a word."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

START = "‹start›"  # stands for the token that a decoder reads first, whatever its name


class Pieces:
    """The text of each token of a tokenizer; texts that were decoded once are kept."""

    def __init__(self, tokenizer: Any) -> None:
        """`tokenizer` is one of transformers."""
        self.tokenizer = tokenizer
        self._alone: dict[int, str] = {}
        self._behind: dict[tuple[int, int], str] = {}  # by (token before, token)
        self._usual: dict[int, str] = {}  # a guess, by token: its text after a token that it followed earlier

    def of(self, ids: Sequence[int]) -> list[str]:
        """The text of each token; the first token of a word includes the space before it, for every tokenizer.

        Tokens have the text that they had earlier; only if these do not join to the decoded text is each decoded again.
        """
        ids = list(ids)
        first, pairs = [self._text(token) for token in ids[:1]], list(pairwise(ids))
        texts = first + [self._usual_text(*pair) for pair in pairs]
        if "".join(texts) == self.tokenizer.decode(ids):
            return texts
        # The text depends on the token before: a character spans tokens, or a space follows only some tokens.
        behind = {pair: self._text_behind(*pair) for pair in pairs}
        self._usual |= {token: text for (_, token), text in behind.items()}
        return first + [behind[pair] for pair in pairs]

    def _text(self, token: int) -> str:
        """The text of a token by itself."""
        if token not in self._alone:
            self._alone[token] = self.tokenizer.decode([token])
        return self._alone[token]

    def _usual_text(self, before: int, token: int) -> str:
        """The text that the token had earlier, after whatever token; else its text after `before`."""
        text = self._usual.get(token)
        return self._text_behind(before, token) if text is None else text

    def _text_behind(self, before: int, token: int) -> str:
        """The text of `token` after `before`; its text by itself where both together spell other characters."""
        pair = before, token
        if pair not in self._behind:
            together, first = self.tokenizer.decode(list(pair)), self._text(before)
            self._behind[pair] = together[len(first) :] if together.startswith(first) else self._text(token)
            self._usual.setdefault(token, self._behind[pair])
        return self._behind[pair]


def pieces(tokenizer: Any, ids: Sequence[int]) -> list[str]:
    """The text of each token (see :meth:`Pieces.of`)."""
    return Pieces(tokenizer).of(ids)


def seen(tokenizer: Any, ids: Sequence[int]) -> list[str]:
    """The texts of what a decoder reads that has written the tokens `ids`: START, then the text of each token."""
    return [START, *pieces(tokenizer, ids)]


def words(tokens: Sequence[str], special: Sequence[bool]) -> list[list[int]]:
    """The indices of the tokens of each word, in order; `tokens` [T] are texts, `special` [T] marks special tokens.

    A word begins at a token that starts with a space or follows a special token. A special token is a word of its own,
    and so is the punctuation before or after a word.
    """
    groups: list[list[int]] = []
    for at, (token, is_special) in enumerate(zip(tokens, special, strict=True)):
        if at == 0 or token[:1].isspace() or is_special or special[at - 1]:
            groups.append([at])
        else:
            groups[-1].append(at)
    return [part for group in groups for part in _without_punctuation(group, tokens)]


def _without_punctuation(group: list[int], tokens: Sequence[str]) -> list[list[int]]:
    """A group of token indices in up to three parts: before the first token with a letter, up to the last, and after.

    Digits count as letters. White space alone before the first letter is no part of its own.
    """
    lettered = [at for at, token in enumerate(group) if _has_letters(tokens[token])]
    if not lettered:
        return [group]
    first = lettered[0] if any(tokens[at].strip() for at in group[: lettered[0]]) else 0  # a space alone is no mark
    parts = group[:first], group[first : lettered[-1] + 1], group[lettered[-1] + 1 :]
    return [part for part in parts if part]


def _has_letters(piece: str) -> bool:
    """True for a text with letters or digits; also for bytes of a character, which may be a letter."""
    return any(letter.isalnum() or letter == "�" for letter in piece)
