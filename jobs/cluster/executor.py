"""Executors, which compute the units of works. A run uses Ray, unless another executor is put in its place:

with executed_by(executor):
    compute(config, store, "attribute")

On CPUs, Ray's workers are hosts: warm processes, which compute one model after another in all stages of a run. To start
a process that can open a model takes seconds of a CPU, more than all units of a small model may take. Models on GPUs
get new processes instead, because a process frees all memory of its device only when it ends.
"""

from __future__ import annotations

import pickle
import uuid
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Any, Protocol

import pyarrow as pa

from closelook.jobs.cluster.pools import PATIENCE, Work, connect, placement, prepare_dataset, uses_gpu
from closelook.jobs.cluster.reports import Report, reports_in
from closelook.jobs.cluster.slots import Share, Slots, cluster_slots
from closelook.jobs.config import RunConfig

IN_HAND = 2  # units that a worker has at once: while it computes or commits one, the next has already arrived

#: Computes the units of a work on workers, each with its share of the cluster, and yields the report of each unit.
Stream = Callable[[RunConfig, str, Work, Share], Iterator[Report]]


class Executor(Protocol):
    """The interface to workers: how many there are, and how units reach them."""

    def connect(self, config: RunConfig) -> None:
        """Make workers available. Raises UserError or ClusterUnreachable if that is impossible."""

    def uses_gpu(self, config: RunConfig) -> bool:
        """True if workers get GPUs."""

    def slots(self, config: RunConfig, on_gpu: bool) -> Slots:
        """The slots for workers."""

    def streaming(self, works: Sequence[Work], on_gpu: bool) -> AbstractContextManager[Stream]:
        """A context that yields the function which computes these works; it is called in one thread for each work."""


class RayExecutor:
    """Workers of Ray: hosts (warm processes), or a pool of actors for each model.

    Hosts are used on CPUs if every model wants a single worker.
    """

    connect = staticmethod(connect)
    uses_gpu = staticmethod(uses_gpu)
    slots = staticmethod(cluster_slots)

    @contextmanager
    def streaming(self, works: Sequence[Work], on_gpu: bool) -> Iterator[Stream]:
        """Yield the function that computes these works: through hosts, or by a pipeline."""
        with kept_hosts() as hosts:
            if not on_gpu and share_hosts(works):
                yield hosts.stream
            else:
                hosts.end()  # the driver counts their CPUs as free
                yield pipeline


def pipeline(config: RunConfig, stage: str, work: Work, share: Share) -> Iterator[Report]:
    """Compute a work by a Ray Data pipeline: a reader makes units one by one, workers commit them and report."""
    import ray.data

    this_node = {"ray.io/node-id": ray.get_runtime_context().get_node_id()}  # samples are not sent to another
    readers = pa.table({"reader": pa.array([pickle.dumps(work.reader())], pa.large_binary())})
    dataset: ray.data.Dataset = ray.data.from_arrow(readers)
    dataset = dataset.map_batches(_units, batch_size=1, batch_format="pyarrow", num_cpus=0, label_selector=this_node)
    pool = ray.data.ActorPoolStrategy(
        min_size=share.workers,
        max_size=share.most,
        max_concurrent_calls_per_actor=IN_HAND,
        enable_true_multi_threading=True,
    )
    dataset = dataset.map_batches(
        work.worker,
        fn_constructor_args=work.arguments,
        compute=pool,
        batch_size=1,
        batch_format="pyarrow",
        **placement(share),
    )
    dataset.context.target_max_block_size = 1  # units leave the reader one by one, and it waits for busy workers
    prepare_dataset(dataset, f"{stage}-{work.model.name}", config, share)
    for row in dataset.iter_rows():
        yield pickle.loads(row["report"])


def _units(readers: pa.Table) -> Iterator[pa.Table]:
    """A Ray Data task: yields the units of a work, a table for each, as the pickled readers make them."""
    for reader in readers["reader"].to_pylist():
        yield from pickle.loads(reader)()


def share_hosts(works: Sequence[Work]) -> bool:
    """True if works on CPUs can be computed by hosts, since each wants exactly one worker."""
    return all(work.model.workers == (1, 1) for work in works)


class Host:
    """A Ray actor that computes one work at a time. After a restart by Ray it builds its worker again."""

    def __init__(self) -> None:
        self._turn = ""
        self._worker: Any = None

    def run(self, turn: str, recipe: tuple[Callable[..., Any], tuple[Any, ...]], table: pa.Table) -> pa.Table:
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

    def stream(self, config: RunConfig, stage: str, work: Work, share: Share) -> Iterator[Report]:
        """Send the units of `work` to one host, at most IN_HAND at a time, and yield their reports.

        Afterwards the host is kept for the next work; after any error it is killed. Raises TimeoutError if a unit takes
        too long. The signature is that of `Stream`: `stage` is not needed here.
        """
        import ray

        host = self._taken(share, work.model.name)
        turn = uuid.uuid4().hex  # by which the host sees that the work is a new one
        recipe = ray.put((work.worker, work.arguments))
        running: deque[Any] = deque()
        try:
            for table in work.reader()():
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
        yield from reports_in(ray.get(reference, timeout=limit_s))
    except ray.exceptions.GetTimeoutError as error:
        raise TimeoutError(f"no unit ended within {limit_s} s ({PATIENCE} times ray.no_progress_timeout_s)") from error


_KEPT: ContextVar[Hosts | None] = ContextVar("hosts", default=None)


@contextmanager
def kept_hosts() -> Iterator[Hosts]:
    """Keep hosts that are started inside the block until its end, so that several stages share them.

    A block inside another one shares the hosts of that one.
    """
    kept = _KEPT.get()
    if kept is not None:
        yield kept
        return
    hosts = Hosts()
    token = _KEPT.set(hosts)
    try:
        yield hosts
    finally:
        _KEPT.reset(token)
        hosts.end()


def end_kept() -> None:
    """Kill the idle hosts of `kept_hosts`, so that other work of Ray can use their CPUs."""
    kept = _KEPT.get()
    if kept is not None:
        kept.end()


_EXECUTOR: ContextVar[Executor | None] = ContextVar("executor", default=None)


def current_executor() -> Executor:
    """The executor of the innermost `executed_by`, else Ray."""
    return _EXECUTOR.get() or RayExecutor()


@contextmanager
def executed_by(executor: Executor) -> Iterator[None]:
    """Let `executor` compute all works that this thread starts inside the block."""
    token = _EXECUTOR.set(executor)
    try:
        yield
    finally:
        _EXECUTOR.reset(token)
