"""One scheduler for all that runs models on workers: each model's units stream through a pool of its own.

Several models run at once, each in a thread of the driver, as soon as their workers fit. What goes wrong with one is
that one's failure, in a line; the others go on.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from jobs.cluster.attempts import forget_loading
from jobs.cluster.hosts import hosts_at_hand
from jobs.cluster.labels import in_words
from jobs.cluster.pools import (
    Share,
    Slots,
    cluster_slots,
    connect,
    placement,
    prepare_dataset,
    share_of,
    uses_gpu,
)
from jobs.cluster.recorder import Progress, Recorder
from jobs.cluster.work import Report, Work
from jobs.config import RunConfig
from jobs.store import Store

#: Runs the units of a work on workers, so many, with a share of the cluster for each.
Stream = Callable[[RunConfig, Store, str, Work, Share, int], Iterator[Report]]


def pipeline(config: RunConfig, store: Store, stage: str, work: Work, share: Share, workers: int) -> Iterator[Report]:
    """The Ray Data pipeline of one work: units go to workers, which commit them and report."""
    import ray.data

    units: Any = (block() for block in work.blocks)  # one at a time is in the driver's memory
    dataset: ray.data.Dataset = ray.data.from_arrow(units)
    if work.reader is not None:
        here = {"ray.io/node-id": ray.get_runtime_context().get_node_id()}  # other nodes may not have its files
        dataset = dataset.map_batches(
            work.reader, batch_size=1, batch_format="pyarrow", num_cpus=0, label_selector=here
        )
    dataset = dataset.map_batches(
        work.worker,
        fn_constructor_args=work.arguments,
        compute=ray.data.ActorPoolStrategy(
            size=workers, max_concurrent_calls_per_actor=work.at_once, enable_true_multi_threading=work.at_once > 1
        ),
        batch_size=1,
        batch_format="pyarrow",
        **placement(share),
    )
    if work.reader is not None:
        dataset.context.target_max_block_size = 1  # its tables leave it one by one, and it waits for busy workers
    prepare_dataset(dataset, f"{stage}-{work.model.name}", config)
    yield from dataset.iter_rows()


def run_all(
    config: RunConfig,
    store: Store,
    works: Sequence[Work],
    stage: str,
    unit: str,
    most_at_once: int | None = None,
    stream: Stream | None = None,
) -> list[str]:
    """Do all works, several at once where they fit, else in their order. Returns the failures, in that order too.

    `stage` and `unit` are what progress calls the work and what reports count; at most `most_at_once` works, or else
    `ray.max_models`, run at once. Works without units need no worker: they are only ended. Raises as `connect`.
    """
    failures: dict[str, list[str]] = {work.name: [] if work.blocks else _ended(work) for work in works}
    todo = [work for work in works if work.blocks]
    if todo:
        connect(config)
        on_gpu = uses_gpu(config)
        slots = cluster_slots(config, on_gpu)
        fitting = []
        for work in todo:
            share = share_of(work.model, on_gpu, config.ray.needs(work.dtypes))
            if slots.room(share) >= _fewest(work):
                fitting.append(work)
            else:
                why = f"model {work.name} asks for more than the cluster has: {_asks(work, share)}"
                failures[work.name] = [why, *_ended(work)]
        sizes, kind = {work.name: work.size for work in fitting}, "GPUs" if on_gpu else "CPUs"
        showing = Progress(sizes, stage=stage, unit=unit, slots=kind)
        with hosts_at_hand() as hosts, Recorder(store, stage) as recorder, showing as progress:
            for name, lines in failures.items():
                if lines:
                    recorder.end(name, lines)
            if stream is None and not on_gpu and share_hosts(fitting):
                stream = hosts.stream
            else:
                hosts.end()  # what they occupy is counted as free
            run = _Run(config, store, stage, stream or pipeline, slots, on_gpu, progress, recorder)
            for name, lines in run.through(fitting, most_at_once or config.ray.max_models or len(fitting)):
                failures[name] = lines
                recorder.end(name, lines)
    return [line for lines in failures.values() for line in dict.fromkeys(lines)]


def share_hosts(works: Sequence[Work]) -> bool:
    """True where works on CPUs go through warm processes: each wants one worker."""
    return all(work.model.workers == (1, 1) for work in works)


@dataclass(frozen=True)
class _Run:
    """The common settings of all works of a stage."""

    config: RunConfig
    store: Store
    stage: str
    stream: Stream
    slots: Slots
    on_gpu: bool
    progress: Progress
    recorder: Recorder
    stopped: threading.Event = field(default_factory=threading.Event)

    def through(self, works: Sequence[Work], most: int) -> Iterator[tuple[str, list[str]]]:
        """Start every work as soon as its workers fit, at most `most` at once. Yields the failures as works end.

        A work whose workers are gone makes room for the next while its cells are still being closed.
        """
        waiting, running, unended = list(works), 0, 0
        events: queue.SimpleQueue[tuple[str, list[str] | None]] = queue.SimpleQueue()
        try:
            while waiting or unended:
                while running < most and self._start_next(waiting, events):
                    running, unended = running + 1, unended + 1
                name, failures = events.get()
                if failures is None:
                    running -= 1
                else:
                    unended -= 1
                    yield name, failures
        finally:
            self.stopped.set()  # by Ctrl-C, too: the root may soon be another run's

    def _start_next(self, waiting: list[Work], events: queue.SimpleQueue[tuple[str, list[str] | None]]) -> bool:
        """Start the first waiting work whose workers fit; whether there is one.

        Its thread tells of two events: None when its workers are gone, its failures when it has ended.
        """
        for work in waiting:
            share = share_of(work.model, self.on_gpu, self.config.ray.needs(work.dtypes))
            taken = self.slots.take(share, work.model.workers[0], min(work.model.workers[1], work.units))
            if taken is not None:
                waiting.remove(work)

                def run(work: Work = work, share: Share = share, taken: Sequence[int] = taken) -> None:
                    failures = [f"model {work.name}: its thread was ended"]
                    try:
                        try:
                            errors = self._streamed(work, self.slots.placed(share, taken), len(taken))
                        finally:
                            self.slots.give_back(share, taken)
                            events.put((work.name, None))
                        failures = self._failures(work, errors)
                    finally:
                        events.put((work.name, failures))

                threading.Thread(target=run, name=f"closelook-{work.name}", daemon=True).start()
                return True
        return False

    def _streamed(self, work: Work, share: Share, workers: int) -> list[str]:
        """Stream the units through a pool, as far as they go; the errors."""
        errors: list[str] = []
        try:
            self.progress.begin(work.name)
            self.recorder.begin(work.name, work.model.name, workers, work.units)
            for report in self.stream(self.config, self.store, self.stage, work, share, workers):
                self.store.check()
                self.progress.advance(work.name, report["rows"], report["tokens"])
                self.recorder.unit(work.name, work.model.name, report)
                work.on_report(report)
                if report["error"]:
                    errors.append(report["error"])
                if report["fatal"]:
                    break
            forget_loading(self.store, work.model.name)
        except Exception as error:  # whatever Ray raises ends this work, not the others
            errors.append(_line(work, error))
        finally:
            self.progress.end(work.name)
        return errors

    def _failures(self, work: Work, errors: Sequence[str]) -> list[str]:
        """End the work; the errors of its units and of its end."""
        return [*errors, *([] if self.stopped.is_set() else _ended(work, errors))]


def _ended(work: Work, told: Sequence[str] = ()) -> list[str]:
    """End the work; the failures, but for what `told` says already: a full store fails whoever writes."""
    try:
        return list(work.on_end())
    except Exception as error:  # of the store, or because another run owns it now
        return [] if any(_first_line(error) in line for line in told) else [_line(work, error)]


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [""])[0]


def _line(work: Work, error: Exception) -> str:
    """One line: an error of the store says by itself what is wrong."""
    kind = "" if isinstance(error, OSError) else f"{type(error).__name__}: "
    return f"model {work.name}: {kind}{_first_line(error)}"


def _fewest(work: Work) -> int:
    return min(work.model.workers[0], work.units)


def _asks(work: Work, share: Share) -> str:
    wanted = f"{_fewest(work)} x {share.size:g} {'GPU' if share.gpus else 'CPU'}"
    return f"{wanted} on nodes labelled {in_words(share.labels)}" if share.labels else wanted
