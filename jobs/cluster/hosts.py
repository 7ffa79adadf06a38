"""Workers that serve one model after another, on CPUs with room for fewer workers than there are models.

Starting a process that can hold a model takes seconds of a CPU, which is more than all units of a small model may take.
Models on GPUs have processes of their own, which give all memory of the device back when they end.
"""

from __future__ import annotations

import gc
import uuid
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from jobs.cluster.pools import Share, placement

if TYPE_CHECKING:
    import pyarrow as pa

    from jobs.cluster.scheduler import Report, Work
    from jobs.config import RunConfig
    from jobs.store import Store

IN_HAND = 2  # units that a host has been sent: the next is there when one ends


class Host:
    """The actor. It has the worker of one work at a time; one that Ray has started again makes it anew."""

    def __init__(self) -> None:
        self._turn = ""
        self._worker: Callable[[pa.Table], pa.Table] | None = None

    def run(self, turn: str, made_of: tuple[Callable[..., Any], tuple[Any, ...]], table: pa.Table) -> pa.Table:
        """The report of the unit `table`, by the worker of this turn: its class and the constructor's arguments."""
        if turn != self._turn or self._worker is None:
            self.rest()
            worker, arguments = made_of
            self._turn, self._worker = turn, worker(*arguments)
        return self._worker(table)

    def rest(self) -> None:
        """Let the model go."""
        self._turn, self._worker = "", None
        gc.collect()


class Hosts:
    """Hosts that were started, those at rest by the nodes where their CPUs were counted."""

    def __init__(self) -> None:
        self._resting: dict[tuple[str, ...], list[Any]] = defaultdict(list)  # only appended to and popped, by threads

    def __bool__(self) -> bool:
        return any(self._resting.values())

    def stream(
        self, config: RunConfig, store: Store, stage: str, work: Work, share: Share, workers: int
    ) -> Iterator[Report]:
        """Send the units to a host, which commits them and reports. Raises TimeoutError when none ends for too long."""
        import ray

        host, turn, made_of = self._taken(share), uuid.uuid4().hex, ray.put((work.worker, work.arguments))
        running: deque[Any] = deque()
        try:
            for table in work.tables():
                running.append(host.run.remote(turn, made_of, table))
                if len(running) == IN_HAND:
                    yield from _report(running.popleft(), config)
            while running:
                yield from _report(running.popleft(), config)
            ray.get(host.rest.remote())
        except BaseException:  # the generator's exit, too: a unit may be running
            _kill(host)
            raise
        self._resting[share.nodes].append(host)

    def _taken(self, share: Share) -> Any:
        import ray

        if self._resting[share.nodes]:
            return self._resting[share.nodes].pop()
        return ray.remote(Host).options(max_restarts=-1, max_task_retries=-1, **placement(share)).remote()

    def end(self) -> None:
        """Give the CPUs of those at rest back."""
        for resting in self._resting.values():
            while resting:
                _kill(resting.pop())


def _kill(host: Any) -> None:
    import ray

    if ray.is_initialized():  # else the driver is ending, and its actors with it
        ray.kill(host)


def _report(reference: Any, config: RunConfig) -> Iterator[Report]:
    import ray

    limit_s = config.ray.no_progress_timeout_s
    try:
        yield from ray.get(reference, timeout=limit_s).to_pylist()
    except ray.exceptions.GetTimeoutError as error:
        raise TimeoutError(f"no unit ended within {limit_s} s (ray.no_progress_timeout_s)") from error


_KEPT: ContextVar[Hosts | None] = ContextVar("hosts", default=None)


@contextmanager
def kept_hosts() -> Iterator[None]:
    """What is started inside serves until the block ends: several stages, one after the other."""
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
