"""The split of draws into training and test, and draws of one side without repetition."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Iterator
from typing import Literal, TypeVar

Split = Literal["train", "test"]
Drawn = TypeVar("Drawn")

_TEST_SHARE = 0.1
_MAX_MISSES = 10_000  # draws in a row that bring nothing new before the language counts as exhausted


def side(text: str) -> Split:
    """The side on which a text falls, by a hash of it that ignores case."""
    share = int.from_bytes(hashlib.sha256(text.lower().encode()).digest()[:8]) / 2**64
    return "test" if share < _TEST_SHARE else "train"


def distinct(
    make: Callable[[], Drawn], split: Split, key: Callable[[Drawn], str], content: Callable[[Drawn], Hashable]
) -> Iterator[Drawn]:
    """Draws of `make` whose `key` falls on one side, each `content` once, until nothing new is drawn."""
    seen: set[Hashable] = set()
    misses = 0
    while misses < _MAX_MISSES:
        draw = make()
        if side(key(draw)) != split or content(draw) in seen:
            misses += 1
            continue
        seen.add(content(draw))
        misses = 0
        yield draw
