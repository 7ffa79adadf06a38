"""The split of draws into training and test, and distinct draws of either."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Iterator
from typing import Literal, TypeVar

Split = Literal["train", "test"]
Drawn = TypeVar("Drawn")

_TEST_SHARE = 0.1
_MAX_MISSES = 10_000  # after so many successive draws without a new one, the language counts as exhausted


def side(text: str) -> Split:
    """The side, "train" or "test", that a text is for, by a hash of it that ignores case."""
    share = int.from_bytes(hashlib.sha256(text.lower().encode()).digest()[:8]) / 2**64
    return "test" if share < _TEST_SHARE else "train"


def distinct(
    make: Callable[[], Drawn], split: Split, key: Callable[[Drawn], str], content: Callable[[Drawn], Hashable]
) -> Iterator[Drawn]:
    """Draws of `make()` that are for `split` by their `key`, and differ in their `content`.

    They end once _MAX_MISSES successive draws were for the other side or not new.
    """
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
