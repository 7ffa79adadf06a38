"""Runs tasks in parallel on a CPU, each with a single torch thread.

By default torch splits every operation over all its threads and waits for the slowest of them. With a thousand short
operations in a layer this waiting dominates: on a busy machine it took seven times as long.
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
    """Decorator: `function` compiled by TorchScript, so that threads do not wait for each other's interpreter lock.

    With the lock, loops of short operations took up to twice as long. TorchScript is deprecated: if torch no longer has
    it, the function is returned unchanged.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        script = getattr(torch.jit, "script", None)
        return function if script is None else script(function)


class _OneThreadEach:
    """A context manager, shared by threads, that restores torch's number of threads when the last one leaves."""

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
    """Run each task in a thread of its own, or a single task in the calling thread. Raises the tasks' errors.

    Tasks run in inference mode and write their results into tensors that exist already. Meanwhile other threads of the
    process may find that torch uses one thread.
    """
    if len(tasks) == 1:
        tasks[0]()
        return

    def alone(task: Callable[[], None]) -> None:
        torch.set_num_threads(1)
        with torch.inference_mode():  # short operations are fastest in it
            task()

    with _one_thread_each, ThreadPoolExecutor(len(tasks)) as pool:
        list(pool.map(alone, tasks))
