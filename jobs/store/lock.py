"""One run per root, which others may ask to stop: a lease with an owner and a heartbeat, where files can be listed.

Object stores have no exclusive create here, so a contender writes a claim of its own, lets others' writes settle, and
looks: a held claim wins, else the earliest. It then holds its claim and looks again until it is alone with that: of two
that hold theirs at once, at least one sees the other, however slow the store is, so that never both own the root. The
later gives way; the earlier waits for that, and gives way itself to one that stays. Claims whose heartbeat stopped are
removed, by the store's clock. An owner that stood still so long that its claim was removed writes nothing more: its
store asks before every write. Workers do not ask: their shards are atomic and deterministic, two owners' would be the
same.
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
SETTLE_S = 0.3
_LOOKS = 20  # for a later claim to be given up
JOB = "CLOSELOOK_JOB"  # the environment variable with the name of the job that a run is, where it was submitted as one
_LATE_S = STALE_S  # who took so long to contend may have been given up meanwhile


class Locked(RuntimeError):
    """Another run owns the root."""


@contextmanager
def run_lock(store: Store, wait_s: float = 0.0) -> Iterator[None]:
    """Own the root while inside, where `store` writes and deletes only as long as that is so.

    Raises Locked, saying who owns it, when that is still so after `wait_s` seconds; and when another run takes over.
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
    """The claim of the run that owns the root now: its host, process and beginning; None where there is none."""
    held = [record for record in _Claim(store).heard() if record["held"]]
    return held[0] if held else None


class _Claim:
    """A file of one contender for the root: its record, and the time of its last renewal as the file's own."""

    def __init__(self, store: Store) -> None:
        self._store = Store(store.root)  # not the one that asks before it writes
        self._path = f"lock/{time.time_ns():020d}-{uuid.uuid4().hex[:8]}.json"
        self._since = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
        self._renewed = 0.0
        self._lost = False

    def contend(self) -> dict[str, Any] | None:
        """Claims the root: None when the claim is now held, else the record of the one that has precedence."""
        while True:
            begun = time.monotonic()
            owner = self._contend_once()
            if owner is not None or time.monotonic() - begun < _LATE_S:
                return owner
            self.release()

    def _contend_once(self) -> dict[str, Any] | None:
        """One attempt: None when the claim is held alone, else the record of a claim that goes before it."""
        self._write(held=False)
        time.sleep(SETTLE_S)
        for earlier, record in self._live():
            if record["held"] or earlier:
                return record
        self._write(held=True)
        for _ in range(_LOOKS):
            time.sleep(SETTLE_S)
            rivals = [(earlier, record) for earlier, record in self._live() if record["held"]]
            if not rivals:
                return None
            before = [record for earlier, record in rivals if earlier]
            if before:
                return before[0]
        return rivals[0][1]  # a later one that does not give way

    @contextmanager
    def beating(self) -> Iterator[None]:
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
        self._store.delete(self._path)

    def check(self) -> None:
        """Raises Locked when the claim is held no more."""
        self._lost = self._lost or not self._store.exists(self._path)
        if self._lost:
            raise Locked(
                f"another run took over {self._store.root} while this one stood still; this one has written nothing "
                "since: run again when the other has ended"
            )

    def _beat(self, stop: threading.Event) -> None:
        while not self._lost and not stop.wait(HEARTBEAT_S):
            with suppress(OSError):  # a full or unreachable store: the next beat tries again
                self._renew()

    def _renew(self) -> None:
        """Refresh the claim. One that another run has removed stays removed."""
        before = self._renewed
        self._lost = not self._store.exists(self._path)
        if self._lost:
            return
        self._write(held=True)
        if time.monotonic() - before > STALE_S and any(record["held"] for _, record in self._others()):
            self._lost = True  # this process stood still between the look and the write
            self.release()

    def _write(self, held: bool) -> None:
        self._renewed = time.monotonic()
        process = {"host": socket.gethostname(), "pid": os.getpid(), "pids": _pid_space(), "since": self._since}
        process["job"] = os.environ.get(JOB)
        record = {**process, "held": held, "stale_s": STALE_S}
        self._store.write_bytes(self._path, json.dumps(record).encode())

    def _live(self) -> Iterator[tuple[bool, dict[str, Any]]]:
        """(whether it came before this one, record) of every other claim that counts; others are removed."""
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
        """The records of claims whose heartbeat goes on, by this machine's clock."""
        for path, record in self._others():
            beat = self._store.modified_s(path)
            is_beating = beat is not None and time.time() - beat <= record.get("stale_s", STALE_S)
            if is_beating and not _is_dead_neighbour(record):
                yield record

    def _others(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """(path, record) of every other claim."""
        for path in self._store.files("lock", ".json"):
            with suppress(FileNotFoundError):  # released meanwhile
                if path != self._path:
                    yield path, json.loads(self._store.read_bytes(path))


def _is_dead_neighbour(record: dict[str, Any]) -> bool:
    """True where the claim is of a process that this one could see and that is gone: such a run is not waited out."""
    if record.get("pids") is None or record["pids"] != _pid_space():
        return False
    try:
        os.kill(record["pid"], 0)
    except OSError as error:
        return isinstance(error, ProcessLookupError)  # not one of another user
    return False


@cache
def _pid_space() -> str | None:
    """A name of the processes among which this one's id is its own: a boot of a machine and a PID namespace (Linux).

    Containers of one host, or of one name, have namespaces of their own. None where the name cannot be read.
    """
    if sys.platform != "linux":
        return socket.gethostname()
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return None


_PATH = "lock/stop"  # beside the claims of the root's owner, who removes it


def ask_to_stop(store: Store) -> None:
    """Ask the run that owns the root to stop."""
    store.write_bytes(_PATH, b"")


def is_asked(store: Store) -> bool:
    """True where the run that owns the root is to stop."""
    (request,) = store.read_all([_PATH])  # one request, of which `exists` takes two
    return request is not None


def forget_request(store: Store) -> None:
    """Remove a request that was met, or that came when no run was there."""
    store.delete(_PATH)
