"""The scheduler of workers: starts the works of a stage as their workers fit, and streams units through their pools.

Several works run at once, each in a thread of the driver and with a pool of its own. An error in one work becomes its
failure, in one line; the others go on.

Ray Data's own scheduling is not used: it would divide the cluster among all pools, which may leave one without workers.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from closelook.jobs.cluster.executor import Stream, current_executor
from closelook.jobs.cluster.pools import Work
from closelook.jobs.cluster.recorder import Progress, Recorder
from closelook.jobs.cluster.slots import Share, Slots, in_words, share_of
from closelook.jobs.config import RunConfig
from closelook.jobs.store import Store


def run_all(
    config: RunConfig, store: Store, works: Sequence[Work], stage: str, unit: str, alone: bool = False
) -> list[str]:
    """Compute all works on workers of the current executor, several at once if they fit. Returns their failures.

    As many works run at once as fit, or one (`alone`). Works start, and failures are returned, in the order
    of `works`. A work without units needs no worker: only its `on_end` is called. `stage` and `unit` are the words of
    progress for the computation and for what reports count. Raises as `Executor.connect`.
    """
    failures: dict[str, list[str]] = {work.name: [] if work.units else _ended(work) for work in works}
    todo = [work for work in works if work.units]
    if todo:
        executor = current_executor()
        executor.connect(config)
        on_gpu = executor.uses_gpu(config)
        slots = executor.slots(config, on_gpu)
        fitting = []
        for work in todo:
            share = share_of(work.model, on_gpu)
            if slots.room(share) >= _fewest(work):
                fitting.append(work)
            else:
                why = f"model {work.name} asks for more than the cluster has: {_asks(work, share)}"
                failures[work.name] = [why, *_ended(work)]
        sizes, kind = {work.name: work.size for work in fitting}, "GPUs" if on_gpu else "CPUs"
        showing = Progress(sizes, stage=stage, unit=unit, slots=kind)
        writing = Recorder(store, stage)
        with executor.streaming(fitting, on_gpu) as stream, writing as recorder, showing as progress:
            for name, lines in failures.items():
                if lines:
                    recorder.end(name, lines)
            run = _Run(config, store, stage, stream, slots, on_gpu, progress, recorder)
            most = 1 if alone else len(fitting)
            for name, lines in run.through(fitting, most):
                failures[name] = lines
                recorder.end(name, lines)
    return [line for lines in failures.values() for line in dict.fromkeys(lines)]


@dataclass(frozen=True)
class _Pool:
    """The workers of a running work."""

    work: Work
    share: Share
    taken: list[int]  # the node of each worker's slot, see `Slots.take`


@dataclass(frozen=True)
class _Run:
    """The works of a stage while they run, and what they share."""

    config: RunConfig
    store: Store
    stage: str
    stream: Stream
    slots: Slots
    on_gpu: bool
    progress: Progress
    recorder: Recorder
    stopped: threading.Event = field(default_factory=threading.Event)
    pools: dict[str, _Pool] = field(default_factory=dict)  # by work

    def through(self, works: Sequence[Work], most: int) -> Iterator[tuple[str, list[str]]]:
        """Run all works, each as soon as its workers fit, at most `most` at once; yield (name, failures) as each ends.

        Each work's thread sends two events: None once its workers are gone, so that the next work can start while its
        cells are still being closed, and then its failures.
        """
        waiting, unended = list(works), 0
        events: queue.SimpleQueue[tuple[str, list[str] | None]] = queue.SimpleQueue()
        try:
            while waiting or unended:
                while len(self.pools) < most and self._start_next(waiting, events):
                    unended += 1
                name, failures = events.get()
                if failures is None:
                    pool = self.pools.pop(name)
                    self.slots.give_back(pool.share, pool.taken)
                else:
                    unended -= 1
                    yield name, failures
        finally:
            self.stopped.set()  # after Ctrl-C too: threads close nothing more, as another run may soon own the root

    def _start_next(self, waiting: list[Work], events: queue.SimpleQueue[tuple[str, list[str] | None]]) -> bool:
        """Start the first waiting work whose workers fit on the cluster. Returns True if there was one.

        Its thread puts two events: (name, None) once its workers are gone, and (name, failures) once it has ended.
        """
        for work in waiting:
            share = share_of(work.model, self.on_gpu)
            most = min(work.model.workers[1], work.units)
            taken = self.slots.take(share, work.model.workers[0], most)
            if taken is not None:
                waiting.remove(work)
                self.pools[work.name] = _Pool(work, share, taken)
                placed = self.slots.placed(share, taken)
                placed = replace(placed, most=len(taken) if waiting else most)  # who grows may not make others wait

                def run(work: Work = work, share: Share = placed) -> None:
                    failures = [f"model {work.name}: its thread was ended"]
                    try:
                        try:
                            errors = self._streamed(work, share)
                        finally:
                            events.put((work.name, None))
                        failures = errors if self.stopped.is_set() else [*errors, *_ended(work, errors)]
                    finally:
                        events.put((work.name, failures))

                threading.Thread(target=run, name=f"closelook-{work.name}", daemon=True).start()
                return True
        return False

    def _streamed(self, work: Work, share: Share) -> list[str]:
        """Stream the units of a work through its pool, up to the first fatal error. Returns the errors."""
        errors: list[str] = []
        try:
            self.progress.begin(work.name)
            self.recorder.begin(work.name, work.model.name, share.workers, work.units)
            for report in self.stream(self.config, self.stage, work, share):
                self.store.check()
                self.progress.advance(work.name, report.rows, report.tokens)
                self.recorder.unit(work.name, work.model.name, report)
                work.on_report(report)
                if report.error:
                    errors.append(report.error)
                if report.fatal:
                    break
        except Exception as error:  # any error of Ray ends this work, but not the others
            errors.append(_line(work, error))
        finally:
            self.progress.end(work.name)
        return errors


def _ended(work: Work, known_failures: Sequence[str] = ()) -> list[str]:
    """Call the work's `on_end` and return its failures.

    An error of the call that `known_failures` contain already is left out: a full store fails for all writers alike.
    """
    try:
        return list(work.on_end())
    except Exception as error:  # the store cannot be written to, or another run owns it now
        first = _first_line(error)
        is_known = bool(first) and any(first in line for line in known_failures)
        return [] if is_known else [_line(work, error)]


def _first_line(error: Exception) -> str:
    """The first line of the error's message."""
    return (str(error).strip().splitlines() or [""])[0]


def _line(work: Work, error: Exception) -> str:
    """A failure as one line, with the error's type; an OSError is a complete sentence and gets none."""
    kind = "" if isinstance(error, OSError) else f"{type(error).__name__}: "
    return f"model {work.name}: {kind}{_first_line(error)}"


def _fewest(work: Work) -> int:
    """The fewest workers that the work can start with."""
    return min(work.model.workers[0], work.units)


def _asks(work: Work, share: Share) -> str:
    """The resources that the work needs at least, in words."""
    demand = f"{_fewest(work)} x {share.size:g} {'GPU' if share.gpus else 'CPU'}"
    return f"{demand} on nodes labelled {in_words(share.labels)}" if share.labels else demand
