"""Warm processes on CPUs, which serve one model after another, and all stages of a run.

Starting a process that can hold a model takes seconds of a CPU, which is more than all units of a small model may take.
Models on GPUs have processes of their own, which give all memory of the device back when they end.
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

    from jobs.cluster.work import Report, Work
    from jobs.config import RunConfig
    from jobs.store import Store

IN_HAND = 2  # units that a host has been sent: the next is there when one ends


class _Worker(Protocol):
    def __call__(self, table: pa.Table) -> pa.Table: ...

    def inherit(self, before: Any) -> None:
        """Take over the model that the process had open, if it is the same."""


class Host:
    """The actor of a process that computes work for one model at a time.

    An actor that Ray restarts builds its worker again.
    """

    def __init__(self) -> None:
        self._turn = ""
        self._worker: _Worker | None = None

    def run(self, turn: str, recipe: tuple[Callable[..., _Worker], tuple[Any, ...]], table: pa.Table) -> pa.Table:
        """The report of the unit `table`, by the worker of this turn: its class and the constructor's arguments."""
        if turn != self._turn or self._worker is None:
            worker, arguments = recipe
            following = worker(*arguments)
            following.inherit(self._worker)
            self._turn, self._worker = turn, following
        return self._worker(table)


class Hosts:
    """Hosts that were started, those at rest by the nodes where their CPUs were counted."""

    def __init__(self) -> None:
        #: (model that is open, host); only appended to and removed from, by threads
        self._resting: dict[tuple[str, ...], list[tuple[str, Any]]] = defaultdict(list)

    def stream(
        self, config: RunConfig, store: Store, stage: str, work: Work, share: Share, workers: Workers
    ) -> Iterator[Report]:
        """Send the units of `work` to one host, two at a time, and yield their reports.

        A host that fails is killed, else it rests for the next work. Raises TimeoutError when no unit ends for too
        long.
        """
        import ray

        host = self._taken(share, work.model.name)
        turn = uuid.uuid4().hex  # tells the host that this is another work
        recipe = ray.put((work.worker, work.arguments))
        running: deque[Any] = deque()
        try:
            for table in work.tables():
                running.append(host.run.remote(turn, recipe, table))
                if len(running) == IN_HAND:
                    yield from _report(running.popleft(), config)
            while running:
                yield from _report(running.popleft(), config)
        except BaseException:  # the generator's exit, too: a unit may be running
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
        """Give the CPUs of those at rest back."""
        for resting in self._resting.values():
            while resting:
                _kill(resting.pop()[1])


def _kill(host: Any) -> None:
    import ray

    if ray.is_initialized():  # else the driver is ending, and its actors with it
        ray.kill(host)


def _report(reference: Any, config: RunConfig) -> Iterator[Report]:
    import ray

    limit_s = PATIENCE * config.ray.no_progress_timeout_s
    try:
        yield from ray.get(reference, timeout=limit_s).to_pylist()
    except ray.exceptions.GetTimeoutError as error:
        raise TimeoutError(f"no unit ended within {limit_s} s ({PATIENCE} times ray.no_progress_timeout_s)") from error


_KEPT: ContextVar[Hosts | None] = ContextVar("hosts", default=None)


def end_kept() -> None:
    """End idle hosts, so that work that asks Ray for CPUs can use theirs."""
    kept = _KEPT.get()
    if kept is not None:
        kept.end()


@contextmanager
def kept_hosts() -> Iterator[None]:
    """Keep the processes that are started inside until the block ends, for several stages one after the other."""
    hosts = Hosts()
    token = _KEPT.set(hosts)
    try:
        yield
    finally:
        _KEPT.reset(token)
        hosts.end()


@contextmanager
def hosts_at_hand() -> Iterator[Hosts]:
    """The hosts that are kept, else new ones, which end with the block."""
    if (kept := _KEPT.get()) is not None:
        yield kept
        return
    hosts = Hosts()
    try:
        yield hosts
    finally:
        hosts.end()
