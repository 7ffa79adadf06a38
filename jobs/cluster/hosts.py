"""Hosts: warm worker processes on CPUs, which compute one model after another in all stages of a run.

To start a process that can open a model takes seconds of a CPU, more than all units of a small model may take. Models
on GPUs get new processes instead, because a process frees all memory of its device only when it ends.
"""

from __future__ import annotations

import uuid
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Protocol

from jobs.cluster.pools import PATIENCE, placement
from jobs.cluster.slots import Share, Workers

if TYPE_CHECKING:
    import pyarrow as pa

    from jobs.cluster.pools import Report, Work
    from jobs.config import RunConfig
    from jobs.store import Store

IN_HAND = 2  # units sent to a host: when one ends, the next has already arrived


class _Worker(Protocol):
    """Computes the units of one work inside a host."""

    def __call__(self, table: pa.Table) -> pa.Table:
        """Compute and commit the unit `table`; returns its report."""
        ...

    def inherit(self, before: Any) -> None:
        """Take over the open model of `before`, the worker of the previous work (or None), if it is the same model."""


class Host:
    """A Ray actor that computes one work at a time. After a restart by Ray it builds its worker again."""

    def __init__(self) -> None:
        self._turn = ""
        self._worker: _Worker | None = None

    def run(self, turn: str, recipe: tuple[Callable[..., _Worker], tuple[Any, ...]], table: pa.Table) -> pa.Table:
        """Compute the unit `table` and return its report.

        `turn` identifies the work, and `recipe` is its worker's class with the constructor's arguments: when the turn
        changes, a new worker is made.
        """
        if turn != self._turn or self._worker is None:
            worker, arguments = recipe
            following = worker(*arguments)
            following.inherit(self._worker)
            self._turn, self._worker = turn, following
        return self._worker(table)


class Hosts:
    """The hosts of a run. Idle ones are kept by the nodes with their slots, to be used again."""

    def __init__(self) -> None:
        #: By nodes: (model that is open, host). Threads only append and remove entries, so no lock is needed.
        self._resting: dict[tuple[str, ...], list[tuple[str, Any]]] = defaultdict(list)

    def stream(
        self, config: RunConfig, store: Store, stage: str, work: Work, share: Share, workers: Workers
    ) -> Iterator[Report]:
        """Send the units of `work` to one host, at most IN_HAND at a time, and yield their reports.

        Afterwards the host is kept for the next work; after any error it is killed. Raises TimeoutError if a unit takes
        too long. The signature is that of `Stream` in jobs/cluster/executor.py: `store`, `stage` and `workers` are not
        needed here.
        """
        import ray

        host = self._taken(share, work.model.name)
        turn = uuid.uuid4().hex  # by which the host sees that the work is a new one
        recipe = ray.put((work.worker, work.arguments))
        running: deque[Any] = deque()
        try:
            for table in work.tables():
                running.append(host.run.remote(turn, recipe, table))
                if len(running) == IN_HAND:
                    yield from _report(running.popleft(), config)
            while running:
                yield from _report(running.popleft(), config)
        except BaseException:  # GeneratorExit too: a unit may still be running
            _kill(host)
            raise
        self._resting[share.nodes].append((work.model.name, host))

    def _taken(self, share: Share, model: str) -> Any:
        """An idle host, preferably one that has the model open; else a new host."""
        import ray

        resting = self._resting[share.nodes]
        for kept in [*(kept for kept in resting if kept[0] == model), *resting]:
            try:
                resting.remove(kept)
            except ValueError:  # another thread has taken it
                continue
            return kept[1]
        return ray.remote(Host).options(max_restarts=-1, max_task_retries=-1, **placement(share)).remote()

    def end(self) -> None:
        """Kill all idle hosts, which frees their CPUs."""
        for resting in self._resting.values():
            while resting:
                _kill(resting.pop()[1])


def _kill(host: Any) -> None:
    """Kill the process of a host."""
    import ray

    if ray.is_initialized():  # otherwise the driver is ending, and its actors end with it
        ray.kill(host)


def _report(reference: Any, config: RunConfig) -> Iterator[Report]:
    """Wait for a unit's result and yield its report. Raises TimeoutError if it takes too long."""
    import ray

    limit_s = PATIENCE * config.ray.no_progress_timeout_s
    try:
        yield from ray.get(reference, timeout=limit_s).to_pylist()
    except ray.exceptions.GetTimeoutError as error:
        raise TimeoutError(f"no unit ended within {limit_s} s ({PATIENCE} times ray.no_progress_timeout_s)") from error


_KEPT: ContextVar[Hosts | None] = ContextVar("hosts", default=None)


def end_kept() -> None:
    """Kill the idle hosts of `kept_hosts`, so that other work of Ray can use their CPUs."""
    kept = _KEPT.get()
    if kept is not None:
        kept.end()


@contextmanager
def kept_hosts() -> Iterator[None]:
    """Keep hosts that are started inside the block until its end, so that several stages share them."""
    hosts = Hosts()
    token = _KEPT.set(hosts)
    try:
        yield
    finally:
        _KEPT.reset(token)
        hosts.end()


@contextmanager
def hosts_at_hand() -> Iterator[Hosts]:
    """The hosts of the surrounding `kept_hosts`, or else new ones, which are killed at the end of the block."""
    if (kept := _KEPT.get()) is not None:
        yield kept
        return
    hosts = Hosts()
    try:
        yield hosts
    finally:
        hosts.end()
