"""Threads on a CPU that share only the result, each with a single thread of torch.

Torch splits every operation over its threads and waits for the last of them. With a thousand short operations a layer
that waiting is what costs, most of all on a machine that does other things too: there it took seven times as long.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Lock
from typing import TypeVar

import torch

Function = TypeVar("Function", bound=Callable[..., object])


def without_python(function: Function) -> Function:
    """`function` as TorchScript: loops of short operations, in threads that do not wait for each other's Python.

    Taking turns at the interpreter's lock made them up to twice as slow. Where torch has TorchScript no more, and it is
    deprecated, the function stays what it was.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        script = getattr(torch.jit, "script", None)
        return function if script is None else script(function)


class _OneThreadEach:
    """A context in which torch uses one thread; the last to leave restores the number that the first saw."""

    def __init__(self) -> None:
        self._lock, self._inside, self._before = Lock(), 0, 1

    def __enter__(self) -> None:
        with self._lock:
            if self._inside == 0:
                self._before = torch.get_num_threads()
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside == 0:
                torch.set_num_threads(self._before)


_one_thread_each = _OneThreadEach()


def run_all(tasks: Sequence[Callable[[], None]]) -> None:
    """Run each task in a thread of its own, a single task in the present thread. Raises the tasks' errors.

    Tasks write into tensors that exist; what they make themselves cannot be differentiated.

    For as long as it runs, other threads of the process may see torch use one thread.
    """
    if len(tasks) == 1:
        tasks[0]()
        return

    def alone(task: Callable[[], None]) -> None:
        torch.set_num_threads(1)
        with torch.inference_mode():  # the least that short operations can cost
            task()

    with _one_thread_each, ThreadPoolExecutor(len(tasks)) as pool:
        list(pool.map(alone, tasks))
