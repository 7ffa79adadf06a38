"""Executors, which compute the units of works. A run uses Ray, unless another executor is put in its place:

with executed_by(executor):
    attribute(config, store)
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Protocol

import pyarrow as pa

from jobs.cluster.hosts import hosts_at_hand
from jobs.cluster.pools import Report, Work, connect, let_grow, placement, prepare_dataset, uses_gpu
from jobs.cluster.slots import Share, Slots, Workers, cluster_slots
from jobs.config import RunConfig
from jobs.store import Store

#: Computes the units of a work on workers, each with its share of the cluster, and yields the report of each unit.
Stream = Callable[[RunConfig, Store, str, Work, Share, Workers], Iterator[Report]]


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
    """Workers of Ray: a task for a work of one long unit, else hosts (warm processes) or a pool of actors per model.

    Hosts are used on CPUs if every model wants a single worker.
    """

    def connect(self, config: RunConfig) -> None:
        """Join the configured cluster, or start a local Ray. Raises as `pools.connect`."""
        connect(config)

    def uses_gpu(self, config: RunConfig) -> bool:
        """True if workers get GPUs, see `pools.uses_gpu`."""
        return uses_gpu(config)

    def slots(self, config: RunConfig, on_gpu: bool) -> Slots:
        """The slots of the cluster, see `slots.cluster_slots`."""
        return cluster_slots(config, on_gpu)

    @contextmanager
    def streaming(self, works: Sequence[Work], on_gpu: bool) -> Iterator[Stream]:
        """Yield the function that computes these works: through hosts, in a task, or by a pipeline."""
        with hosts_at_hand() as hosts:
            is_task = any(work.is_task for work in works)
            if not (on_gpu or is_task) and share_hosts(works):
                yield hosts.stream
            else:
                hosts.end()  # the driver counts their CPUs as free
                yield in_a_task if is_task else pipeline


def pipeline(
    config: RunConfig, store: Store, stage: str, work: Work, share: Share, workers: Workers
) -> Iterator[Report]:
    """Compute a work by a Ray Data pipeline: a reader makes units one by one, workers commit them and report."""
    import ray.data

    this_node = {"ray.io/node-id": ray.get_runtime_context().get_node_id()}  # the reader reads files of this node
    assert work.reader is not None
    readers = pa.table({"reader": pa.array([pickle.dumps(work.reader())], pa.large_binary())})
    dataset: ray.data.Dataset = ray.data.from_arrow(readers)
    dataset = dataset.map_batches(_units, batch_size=1, batch_format="pyarrow", num_cpus=0, label_selector=this_node)
    pool = ray.data.ActorPoolStrategy(
        min_size=workers.size,
        max_size=workers.most,
        max_concurrent_calls_per_actor=work.at_once,
        enable_true_multi_threading=work.at_once > 1,
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
    prepare_dataset(dataset, f"{stage}-{work.model.name}", config, workers)
    if workers.may_grow:
        let_grow(dataset, share, workers)
    yield from dataset.iter_rows()


def _units(readers: pa.Table) -> Iterator[pa.Table]:
    """A Ray Data task: yields the units of a work, a table for each, as the pickled readers make them."""
    for reader in readers["reader"].to_pylist():
        yield from pickle.loads(reader)()


def in_a_task(
    config: RunConfig, store: Store, stage: str, work: Work, share: Share, workers: Workers
) -> Iterator[Report]:
    """Compute a work of a single unit in a Ray task, which, unlike a pipeline, has no limit of time."""
    import ray

    (block,) = work.blocks
    task = ray.remote(work.worker).options(
        name=f"{stage}-{work.name}",
        max_retries=config.max_attempts - 1,
        **placement(share),
    )
    yield from ray.get(task.remote(*work.arguments, block)).to_pylist()


def share_hosts(works: Sequence[Work]) -> bool:
    """True if works on CPUs can be computed by hosts, since each wants exactly one worker."""
    return all(work.model.workers == (1, 1) for work in works)


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
