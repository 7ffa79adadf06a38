"""Counts the deaths of worker processes in the store, so that a row that kills its process is found and left out.

A note says what of a unit is running, and is removed when the unit is computed or an error is raised. So who finds a
note knows that what was running ended its process, unless the node was lost too, or the note is of an earlier run,
which somebody may have stopped. A unit that has ended several processes is computed row by row, each noted before it
runs. A watchdog ends the process when a batch hangs, so that the next process finds the row that hangs.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from closelook.jobs.store import Store

EXIT_CODE = 75  # EX_TEMPFAIL: Ray starts the worker again
LOADING, COMPUTING = "loading the model", "computing"  # what of a unit is running; else a row, by its name


class Attempts:
    """The notes about attempts to compute one unit of work.

    Only one worker at a time computes a unit, so notes are read and replaced without a lock.
    """

    def __init__(self, store: Store, unit: str, most: int, run: str) -> None:
        """A unit that has ended `most` processes of this `run` is computed row by row."""
        self._store = store
        self._path = f"attempts/{unit}.json"
        self._most = most
        self._notes: dict[str, Any] = {"run": run, "node": node_id(), "running": None, "deaths": {}, "reasons": {}}

    @contextmanager
    def running(self) -> Iterator[None]:
        """The unit runs inside. The note is left by the end of the process alone, as after the error of a lost device.

        While another thread commits the unit there is no note: the process may end by what else it computes then.
        """
        from closelook.lrp_core.device.memory import is_device_lost

        self.begin()
        try:
            yield
        except Exception as error:
            if not is_device_lost(error):
                with suppress(OSError):  # that of the unit is told
                    self._clear()
            raise
        self._clear()

    def begin(self) -> None:
        """Note that the unit begins. Counts a death if the notes say that something was running."""
        with suppress(FileNotFoundError):  # the first attempt finds no notes
            before = json.loads(self._store.read_bytes(self._path))
            if before.get("run") == self._notes["run"]:
                self._notes |= {"deaths": before["deaths"], "reasons": before["reasons"]}
                if before["running"] is not None:
                    self._notes["deaths"].setdefault(before["running"], []).append(before["node"])
        self.run(COMPUTING)

    def run(self, name: str | None) -> None:
        """Note that `name` is running from now on; None: nothing."""
        self._notes["running"] = name
        self._store.write_bytes(self._path, json.dumps(self._notes).encode())

    def deaths(self, name: str) -> int:
        """The number of this run's processes that died while `name` was running, on nodes that are still alive."""
        return _counted(self._notes["deaths"].get(name, ()))

    def has_ended_processes(self) -> bool:
        """True if computing the unit has ended so many processes that its rows are to be computed one by one."""
        return self.deaths(COMPUTING) >= self._most

    def blame(self, reason: str) -> None:
        """Note that the process is about to end because a batch hangs, so that its rows run one by one next time."""
        running = self._notes["running"]
        if running == COMPUTING:  # else the note blames a row already
            self._notes["deaths"][COMPUTING] = [self._notes["node"]] * self._most
            self._notes["running"] = None
        self.keep_reason(reason, running)

    def keep_reason(self, error: str, running: str | None = None) -> None:
        """Note the error because of which the process is about to end, while `running` runs; None: what is noted."""
        self._notes["reasons"][running or self._notes["running"]] = f": {error}"
        self.run(self._notes["running"])

    def reason(self, name: str) -> str:
        """Why `name` last ended a process, as the end of a sentence; empty if no reason was noted."""
        return str(self._notes["reasons"].get(name, ""))

    def _clear(self) -> None:
        """Remove the notes."""
        self._store.delete(self._path)


class Untroubled(Attempts):
    """Attempts for a computation without a store, such as `closelook.explain`: nothing is noted or counted."""

    def __init__(self) -> None:
        pass

    def run(self, name: str | None) -> None:
        pass

    def has_ended_processes(self) -> bool:
        return False

    def keep_reason(self, error: str, running: str | None = None) -> None:
        pass


def end_with_device(error: BaseException, attempts: Attempts | None = None) -> None:
    """End this process if `error` says that its device is lost, so that Ray starts another. Else do nothing.

    The notes of `attempts` let the next process find the row that is to blame.
    """
    from closelook.lrp_core.device.memory import is_device_lost

    if is_device_lost(error):
        reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
        if attempts is not None:
            attempts.keep_reason(reason)
        print(f"the device is lost: {reason}", file=sys.stderr, flush=True)
        os._exit(1)


def _counted(nodes: Sequence[str]) -> int:
    """The number of living nodes of these (Ray's ids): deaths on a node that was taken away are no fault of a row."""
    if not nodes:
        return 0
    this_node = node_id()
    if all(node == this_node for node in nodes):
        return len(nodes)
    ray = _ray()
    alive = {this_node, *(node["NodeID"] for node in (ray.nodes() if ray else ()) if node["Alive"])}
    return sum(node in alive for node in nodes)


def node_id() -> str:
    """Ray's id of this node; empty outside Ray."""
    ray = _ray()
    return ray.get_runtime_context().get_node_id() if ray else ""


def _ray() -> Any:
    """The module `ray` if this process is part of a cluster, else None. Does not import it."""
    ray = sys.modules.get("ray")
    return ray if ray is not None and ray.is_initialized() else None


class Watchdog:
    """Watches one batch at a time, which may take `limit_s` seconds; 0: no limit."""

    def __init__(self, limit_s: float = 0) -> None:
        self._limit_s = limit_s
        self._lock = threading.Lock()
        self._batch: tuple[float, Attempts] | None = None  # (deadline, notes of its unit)
        self._started = False

    @contextmanager
    def watching(self, attempts: Attempts) -> Iterator[None]:
        """Inside, a batch runs; `attempts` are the notes of its unit, which tell the next process."""
        if not self._limit_s:
            yield
            return
        self._start()
        with self._lock:
            self._batch = (time.monotonic() + self._limit_s, attempts)
        try:
            yield
        finally:
            with self._lock:
                self._batch = None

    def _start(self) -> None:
        """Start the thread, once."""
        if not self._started:
            self._started = True
            threading.Thread(target=self._watch, daemon=True, name="closelook-watchdog").start()

    def _watch(self) -> None:
        """The thread: end the process when a batch has passed its limit."""
        while True:
            time.sleep(min(1.0, self._limit_s / 4))
            with self._lock:
                if self._batch is not None and time.monotonic() > self._batch[0]:
                    _, attempts = self._batch
                    reason = f"it had not ended after {self._limit_s:g} s"
                    with suppress(OSError):  # the store may be gone
                        attempts.blame(reason)
                    said = f"a batch hangs: {reason}; the next process computes the rows of its unit one by one"
                    print(said, file=sys.stderr, flush=True)
                    os._exit(EXIT_CODE)
