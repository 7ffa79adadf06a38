"""The split of draws into training and test, and distinct draws of either."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Hashable, Iterator
from typing import Literal, Protocol, TypeVar

Split = Literal["train", "test"]


class Draw(Protocol):
    """One draw of the generator. A hash of its `key` decides the split; draws of equal `content` are the same."""

    @property
    def key(self) -> str: ...

    @property
    def content(self) -> Hashable: ...


Drawn = TypeVar("Drawn", bound=Draw)

_TEST_SHARE = 0.1
_MAX_MISSES = 10_000  # after so many successive draws without a new one, the language counts as exhausted


def side(text: str) -> Split:
    """The side, "train" or "test", that a text is for, by a hash of it that ignores case."""
    share = int.from_bytes(hashlib.sha256(text.lower().encode()).digest()[:8]) / 2**64
    return "test" if share < _TEST_SHARE else "train"


def distinct(task: str, make: Callable[[random.Random], Drawn], seed: int, split: Split) -> Iterator[Drawn]:
    """Draws of `make` that are for `split`, no two of which are the same, in an order fixed by `seed`.

    They end once _MAX_MISSES successive draws were for the other side or not new.
    """
    rng, seen = random.Random(f"{task} {split} {seed}"), set[Hashable]()
    misses = 0
    while misses < _MAX_MISSES:
        draw = make(rng)
        if side(draw.key) != split or draw.content in seen:
            misses += 1
            continue
        seen.add(draw.content)
        misses = 0
        yield draw
