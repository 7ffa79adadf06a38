"""Which side of the split a draw falls on, and draws of one side without repetition."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Iterator
from typing import Literal, Protocol, TypeVar

Split = Literal["train", "test"]

_TEST_SHARE = 0.1
_MAX_MISSES = 10_000  # draws in a row that bring nothing new before the language counts as exhausted


class _Drawn(Protocol):
    @property
    def split(self) -> Split: ...


Drawn = TypeVar("Drawn", bound=_Drawn)


def side(text: str) -> Split:
    """The side on which a text falls, by a hash of it that ignores case."""
    share = int.from_bytes(hashlib.sha256(text.lower().encode()).digest()[:8]) / 2**64
    return "test" if share < _TEST_SHARE else "train"


def distinct(make: Callable[[], Drawn], split: Split, content: Callable[[Drawn], Hashable]) -> Iterator[Drawn]:
    """What `make` draws of one side, each `content` once, until it draws nothing new."""
    seen: set[Hashable] = set()
    misses = 0
    while misses < _MAX_MISSES:
        draw = make()
        if draw.split != split or content(draw) in seen:
            misses += 1
            continue
        seen.add(content(draw))
        misses = 0
        yield draw
