"""Progress of methods with many forward passes, reported to a caller that watches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

Watch = Callable[[int, int], None]  # of the forwards' rows that are done, and of all

_watch: ContextVar[Watch | None] = ContextVar("watch", default=None)


@contextmanager
def watched_by(watch: Watch) -> Iterator[None]:
    """Inside, `watch` is told how many of how many rows the method in hand has run.

    >>> with watched_by(lambda done, total: print(f"{done} of {total}")):
    ...     tell(3, 12)
    3 of 12
    """
    outer = _watch.set(watch)
    try:
        yield
    finally:
        _watch.reset(outer)


@contextmanager
def part_of_work(number: int, count: int) -> Iterator[None]:
    """Inside, part `number` of `count` alike parts is worked on: who watches is told of all of them.

    >>> with watched_by(lambda done, total: print(f"{done} of {total}")):
    ...     with part_of_work(1, 3):
    ...         tell(2, 10)
    ...     with part_of_work(2, 3):
    ...         pass
    12 of 30
    3 of 3
    """
    watch = _watch.get()
    if watch is None:
        yield
        return
    told: list[int] = []

    def of_all(done: int, total: int) -> None:
        told.append(total)
        watch(number * total + done, count * total)

    with watched_by(of_all):
        yield
    if not told:
        watch(number + 1, count)


def tell(done: int, total: int) -> None:
    """Report that `done` rows of `total` have run; without a watcher nothing happens."""
    watch = _watch.get()
    if watch is not None:
        watch(done, total)
