"""The lock of a root: one run owns it at a time, by a claim file with a heartbeat; others may ask that run to stop.

Object stores cannot create a file exclusively. So a contender writes a claim file, waits until the files of others are
visible, and lists all claims: a held claim wins, else the earliest. The winner marks its own as held and lists again
until no other held claim is left. Of two contenders that mark theirs at the same time at least one sees the other,
however slow the store is, so two never own the root: the later one gives way, and the earlier one gives way too if the
later stays. Claims whose heartbeat has stopped, by the store's clock, are removed. An owner that was suspended so long
that its claim was removed writes nothing more: its store checks the claim before every write. Workers do not check:
their shards are atomic and deterministic, so two owners would write the same bytes.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

from jobs.store import Store

STALE_S = float(os.environ.get("CLOSELOOK_LOCK_STALE_S", "60"))
HEARTBEAT_S = STALE_S / 6
SETTLE_S = 0.3  # wait after a write, until others see it
_LOOKS = 20  # listings after which a later held claim is taken to stay
JOB = "CLOSELOOK_JOB"  # environment variable: the name of the cluster job in which a run was submitted
_LATE_S = STALE_S  # a contender that took so long may have had its claim removed as stale: it starts again
_STOP = "lock/stop"  # the path of the request to stop, which the root's owner removes


class Locked(RuntimeError):
    """Another run owns the root."""


@contextmanager
def run_lock(store: Store, wait_s: float = 0.0) -> Iterator[None]:
    """Own the root inside the block. `store` checks before every write and removal that the root is still owned.

    Raises Locked if another run still owns the root after `wait_s` seconds, with its process and host, and if another
    run takes the root over while the block runs.
    """
    deadline = time.monotonic() + wait_s
    while True:
        claim = _Claim(store)
        owner = claim.contend()
        if owner is None:
            break
        claim.release()
        if time.monotonic() >= deadline:
            raise Locked(
                f"{store.root} is in use by process {owner['pid']} on {owner['host']}, running since {owner['since']}; "
                "wait for it to end, or stop it and try again"
            )
        time.sleep(min(HEARTBEAT_S, max(0.0, deadline - time.monotonic())))
    with claim.beating(), store.guarded(claim.check):
        yield
        claim.check()


def owner_of(store: Store) -> dict[str, Any] | None:
    """The claim (`host`, `pid`, `since`, `job`, ...) of the run that owns the root now; None if no run does."""
    held = [record for record in _Claim(store).heard() if record["held"]]
    return held[0] if held else None


class _Claim:
    """The claim file of one contender. The file's time of change is the time of its last heartbeat."""

    def __init__(self, store: Store) -> None:
        self._store = Store(store.root)  # `store` would check this very claim before it writes it
        self._path = f"lock/{time.time_ns():020d}-{uuid.uuid4().hex[:8]}.json"
        self._since = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
        self._renewed = 0.0
        self._lost = False

    def contend(self) -> dict[str, Any] | None:
        """Claim the root. Returns None if the claim is now held, else the record of the claim that has precedence."""
        while True:
            begun = time.monotonic()
            owner = self._contend_once()
            if owner is not None or time.monotonic() - begun < _LATE_S:
                return owner
            self.release()

    def _contend_once(self) -> dict[str, Any] | None:
        """Write the claim, then mark it as held, and look for other claims after each step.

        Returns None if no other claim is held, else the record of the claim to which this one gives way.
        """
        self._write(held=False)
        time.sleep(SETTLE_S)
        for earlier, record in self._live():
            if record["held"] or earlier:
                return record
        self._write(held=True)
        for _ in range(_LOOKS):
            time.sleep(SETTLE_S)
            held = [(earlier, record) for earlier, record in self._live() if record["held"]]
            if not held:
                return None
            for earlier, record in held:
                if earlier:
                    return record
        _, later = held[0]  # it should have given way by now, but may not have seen this claim
        return later

    @contextmanager
    def beating(self) -> Iterator[None]:
        """Renew the claim from another thread inside the block, and release it at the end."""
        stop = threading.Event()
        thread = threading.Thread(target=self._beat, args=(stop,), daemon=True, name="closelook-heartbeat")
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()
            self.release()

    def release(self) -> None:
        """Remove the claim file, so that other runs can own the root."""
        self._store.delete(self._path)

    def check(self) -> None:
        """Raise Locked if another run has removed this claim."""
        self._lost = self._lost or not self._store.exists(self._path)
        if self._lost:
            raise Locked(
                f"another run took over {self._store.root} while this one was suspended; this one has written nothing "
                "since: run again when the other has ended"
            )

    def _beat(self, stop: threading.Event) -> None:
        """Renew the claim every HEARTBEAT_S seconds until `stop` is set or the claim is lost."""
        while not self._lost and not stop.wait(HEARTBEAT_S):
            with suppress(OSError):  # a full or unreachable store: the next beat tries again
                self._renew()

    def _renew(self) -> None:
        """Write the claim file again, which is its heartbeat. Sets `_lost` if another run has taken over the root."""
        last_renewal = self._renewed
        self._lost = not self._store.exists(self._path)
        if self._lost:
            return  # another run removed the file: writing would bring it back
        self._write(held=True)
        # If this process was suspended after that check, another run may have removed the file and own the root: the
        # write then brought the file back, and it is removed again.
        if time.monotonic() - last_renewal > STALE_S and any(record["held"] for _, record in self._others()):
            self._lost = True
            self.release()

    def _write(self, held: bool) -> None:
        """Write the claim file; `held`: the claim owns the root, and does not just contend for it."""
        self._renewed = time.monotonic()
        process = {"host": socket.gethostname(), "pid": os.getpid(), "pids": _pid_space(), "since": self._since}
        process["job"] = os.environ.get(JOB)
        record = {**process, "held": held, "stale_s": STALE_S}
        self._store.write_bytes(self._path, json.dumps(record).encode())

    def _live(self) -> Iterator[tuple[bool, dict[str, Any]]]:
        """(is it earlier than this claim, record) of every other live claim. Removes claims of runs that are dead."""
        now = self._store.modified_s(self._path) or time.time()
        for path, record in self._others():
            beat = self._store.modified_s(path)
            if beat is None:
                continue  # released meanwhile
            if now - beat > record.get("stale_s", STALE_S) or _is_dead_neighbour(record):
                self._store.delete(path)
            else:
                yield path < self._path, record

    def heard(self) -> Iterator[dict[str, Any]]:
        """The records of other claims with a recent heartbeat, by this machine's clock. Removes nothing."""
        for path, record in self._others():
            beat = self._store.modified_s(path)
            is_beating = beat is not None and time.time() - beat <= record.get("stale_s", STALE_S)
            if is_beating and not _is_dead_neighbour(record):
                yield record

    def _others(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """(path, record) of every other claim file."""
        for path in self._store.files("lock", ".json"):
            with suppress(FileNotFoundError):  # released meanwhile
                if path != self._path:
                    yield path, json.loads(self._store.read_bytes(path))


def _is_dead_neighbour(record: dict[str, Any]) -> bool:
    """True if the claim is of a process on this machine that has ended, so that nobody needs to wait until it is stale.

    False for processes that cannot be seen from here: those of other machines, boots or containers.
    """
    if record.get("pids") is None or record["pids"] != _pid_space():
        return False
    try:
        os.kill(record["pid"], 0)
    except OSError as error:
        return isinstance(error, ProcessLookupError)  # another user's process raises PermissionError, and is alive
    return False


@cache
def _pid_space() -> str | None:
    """An identifier of the set of processes within which a PID is unique: the machine's boot and PID namespace (Linux).

    A host name would not do: containers of one host have different namespaces. None if it cannot be read.
    """
    if sys.platform != "linux":
        return socket.gethostname()
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return None


def ask_to_stop(store: Store) -> None:
    """Leave a request that the run which owns the root should stop."""
    store.write_bytes(_STOP, b"")


def is_asked(store: Store) -> bool:
    """True if there is a request that the run which owns the root should stop."""
    (request,) = store.read_all([_STOP])  # `exists` would make two HTTP requests
    return request is not None


def forget_request(store: Store) -> None:
    """Remove a request to stop: one that was met, or one that was left while no run owned the root."""
    store.delete(_STOP)
