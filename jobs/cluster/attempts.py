"""Deaths of workers, counted in the store, so that what kills its process cannot do so for ever.

A unit is noted when it is begun and its note removed when it is committed. Only a unit that was begun before, and so
may have ended a worker, pays for finer notes: of each batch before it runs and, in a batch that has ended workers
often enough, of each row. Who finds that something was running knows that the process died of it, unless its node went
too, or the note is of an earlier run, which somebody stopped: neither says anything of the rows.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from jobs.plan.checkpoints import ModelUnavailable
from jobs.store import Store

_BEGUN: set[Attempts] = set()  # of this process, not cleared yet
_GIVEN_UP: dict[tuple[str, str, str], str] = {}  # why a model is loaded no more, by root, run and folder of its notes


def excuse_all() -> None:
    """Note that nothing that runs in this process is to blame for its end."""
    for attempts in list(_BEGUN):
        with suppress(OSError, RuntimeError):  # the store may be gone too
            attempts.rest()


class Attempts:
    """The notes of a unit of work.

    Only one worker at a time computes a unit, so notes are read and replaced without a lock.
    """

    def __init__(self, store: Store, unit: str, max_attempts: int, run: str) -> None:
        """`run` tells this run's processes from those of earlier ones."""
        self._store = store
        self._path = f"attempts/{unit}.json"
        self._most = max_attempts
        self._again = False
        self._notes: dict[str, Any] = {"run": run, "node": node_id(), "running": None, "deaths": {}}
        self.reason = ""  # why the last attempt ended, as the end of a sentence; empty when it could not say

    def begin(self, running: str | None = None) -> None:
        """Note that the unit begins, with the part of it that runs from now on."""
        _BEGUN.add(self)
        with suppress(FileNotFoundError):  # the first attempt finds no notes
            before = json.loads(self._store.read_bytes(self._path))
            self._again = True
            if before.get("run") == self._notes["run"]:
                self.reason = before.get("reason", "")
                self._notes["deaths"] = before["deaths"]
                if before["running"] is not None:
                    self._notes["deaths"].setdefault(before["running"], []).append(before["node"])
        self._run(running)

    def note_batch(self, name: str) -> bool:
        """Note that the batch begins.

        Returns True if it has ended `max_attempts` workers, so that its rows run one by one.
        """
        if not self._again:
            return False
        self._run(f"batch {name}")
        return self.deaths(f"batch {name}") >= self._most

    def end_batch(self, name: str) -> None:
        self._notes["deaths"].pop(f"batch {name}", None)

    def note_row(self, name: str) -> bool:
        """Note that the row begins; True where it has ended a worker before."""
        self._run(f"row {name}")
        return self.deaths(f"row {name}") > 0

    def end_row(self, name: str) -> None:
        self._notes["deaths"].pop(f"row {name}", None)

    def ended_by(self, *prefixes: str) -> bool:
        """True where a row whose name begins so has ended a worker."""
        beginnings = tuple(f"row {prefix}" for prefix in prefixes)
        return any(name.startswith(beginnings) and self.deaths(name) for name in self._notes["deaths"])

    def blame(self, batch: str, reason: str) -> None:
        """Note that the process is about to end because the batch hangs, so that its rows run one by one from now on.

        Of a row that runs alone, its own note says so.
        """
        if not str(self._notes["running"]).startswith("row "):
            self._notes["deaths"][f"batch {batch}"] = [self._notes["node"]] * self._most
            self._notes["running"] = None
        self.keep_reason(reason)

    def keep_reason(self, error: str) -> None:
        """Note the reason why the process is about to end."""
        self._notes["reason"] = f": {error}"
        self._run(self._notes["running"])

    @contextmanager
    def survived(self) -> Iterator[None]:
        """Batches run inside. Nothing is left noted as running, unless the process is about to end for its device."""
        from lrp_core.device.memory import is_device_lost

        try:
            yield
        except Exception as error:
            if not is_device_lost(error):
                self.rest()
            raise
        self.rest()

    def clear(self) -> None:
        _BEGUN.discard(self)
        self._store.delete(self._path)

    def deaths(self, name: str) -> int:
        """The number of processes of this run that died while `name` ran, on nodes that are still there."""
        return _counted(self._notes["deaths"].get(name, ()))

    def rest(self) -> None:
        """Note that nothing is running: if the process ends now, no row is to blame."""
        if self._notes["running"] is not None:
            self._run(None)

    def _run(self, name: str | None) -> None:
        self._notes["running"] = name
        self._store.write_bytes(self._path, json.dumps(self._notes).encode())


class Untroubled(Attempts):
    """The attempts of a computation without a store: no process has ended of it, and nothing is noted."""

    def __init__(self) -> None:
        self.reason = ""

    def note_batch(self, name: str) -> bool:
        return False

    def end_batch(self, name: str) -> None:
        pass

    def ended_by(self, *prefixes: str) -> bool:
        return False

    def keep_reason(self, error: str) -> None:
        pass


@contextmanager
def loading(store: Store, model: str, max_attempts: int, run: str) -> Iterator[None]:
    """The model is loaded inside. Raises ModelUnavailable when that has ended `max_attempts` processes of this run.

    A process that has raised it notes nothing more: it may have units in hand when the driver removes the notes.
    """
    folder = _loads(model)
    if (store.root, run, folder) in _GIVEN_UP:
        raise ModelUnavailable(_GIVEN_UP[store.root, run, folder])
    attempts = Attempts(store, f"{folder.removeprefix('attempts/')}/{_actor()}", max_attempts, run)
    attempts.begin("loading")
    with attempts.survived():
        if attempts.deaths("loading"):
            notes = []
            for path in store.files(folder, ".json"):
                with suppress(FileNotFoundError):  # its worker has loaded the model meanwhile
                    notes.append(json.loads(store.read_bytes(path)))
            deaths = sum(_counted(note["deaths"].get("loading", ())) for note in notes if note["run"] == run)
            if deaths >= max_attempts:
                _GIVEN_UP[store.root, run, folder] = (
                    f"model {model}: loading it ended {deaths} processes, as when a node has too little memory: "
                    "lower its max_memory or workers, or give it larger nodes"
                )
                raise ModelUnavailable(_GIVEN_UP[store.root, run, folder])
        yield
    attempts.clear()


def forget_loading(store: Store, model: str) -> None:
    """Remove the notes of a model that no worker loads any more."""
    for path in store.files(_loads(model), ".json"):
        store.delete(path)


def end_with_device(error: BaseException, attempts: Attempts | None = None) -> None:
    """End this process if the device is lost, so that Ray starts another; the marks of attempts isolate the row.

    Returns for any other error.
    """
    from lrp_core.device.memory import is_device_lost

    if is_device_lost(error):
        reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
        if attempts is not None:
            attempts.keep_reason(reason)
        print(f"the device is lost: {reason}", file=sys.stderr, flush=True)
        os._exit(1)


def _loads(model: str) -> str:
    return f"attempts/loading/{model}"


def _counted(nodes: Sequence[str]) -> int:
    """The number of nodes that are still there: processes on a preempted node died for no fault of theirs."""
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


def _actor() -> str:
    """Ray's id of this worker, which its restarts keep."""
    ray = _ray()
    return (ray.get_runtime_context().get_actor_id() if ray else None) or "alone"


def _ray() -> Any:
    """Ray where this process is part of a cluster, else None."""
    ray = sys.modules.get("ray")
    return ray if ray is not None and ray.is_initialized() else None
