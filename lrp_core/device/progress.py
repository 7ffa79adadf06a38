"""Reports the progress of methods with many forward passes to a callback of the caller."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

Watch = Callable[[int, int], None]  # called with the number of rows that have run, and of all rows

_watch: ContextVar[Watch | None] = ContextVar("watch", default=None)


@contextmanager
def watched_by(watch: Watch) -> Iterator[None]:
    """Inside, a method that runs calls `watch(done, total)` with its numbers of rows.

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
    """Inside, part `number` of `count` equal parts of the work is done; the watcher gets the numbers of the whole.

    A part that reports nothing counts as one step.

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
    totals: list[int] = []

    def of_all(done: int, total: int) -> None:
        totals.append(total)
        watch(number * total + done, count * total)

    with watched_by(of_all):
        yield
    if not totals:
        watch(number + 1, count)


def tell(done: int, total: int) -> None:
    """Report to the watcher, if there is one, that `done` rows of `total` have run."""
    watch = _watch.get()
    if watch is not None:
        watch(done, total)
