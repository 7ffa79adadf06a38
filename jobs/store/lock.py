"""The lock of a root: one run owns it at a time, by a claim file with a heartbeat; others may ask that run to stop.

Claims are numbered. Who finds no live claim creates the next one, which fails if another run has just created it. Then
it looks once more: a run that was slow, and created an old number, finds the owner's claim and withdraws its own. A
claim whose heartbeat has stopped, by the store's clock, is stale: it is passed over, and removed by the next owner. So
is one that cannot be read, whose owner is not known: its writer was cut off, or another program wrote it.

An owner that was suspended so long that its claim was removed writes nothing more: its store checks the claim before
every write. Workers do not check: their shards are atomic and deterministic, so two owners would write the same bytes.
"""

from __future__ import annotations

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

from pydantic import BaseModel, ValidationError

from closelook.jobs.store import Store
from closelook.jobs.store.files import TEMPORARY

STALE_S = float(os.environ.get("CLOSELOOK_LOCK_STALE_S", "60"))
HEARTBEAT_S = STALE_S / 6
_STOP = "lock/stop"  # the path of the request to stop, which the root's owner removes


class Locked(RuntimeError):
    """Another run owns the root."""


class Owner(BaseModel, frozen=True):
    """The content of a claim: the process that owns a root, or wants to. By default one that is not known."""

    token: str = ""  # tells this claim from all others
    host: str = "an unknown machine"
    pid: int | None = None
    pids: str | None = None  # the processes among which `pid` is unique, see `_pid_space`
    since: str = "an unknown time"
    stale_s: float = STALE_S

    def __str__(self) -> str:
        process = "an unknown process" if self.pid is None else f"process {self.pid}"
        return f"{process} on {self.host}"

    def is_dead_neighbour(self) -> bool:
        """True if this is a process of this machine that has ended, so that nobody needs to wait until it is stale.

        False for processes that cannot be seen from here: those of other machines, boots or containers.
        """
        if self.pid is None or self.pids is None or self.pids != _pid_space():
            return False
        try:
            os.kill(self.pid, 0)
        except OSError as error:
            return isinstance(error, ProcessLookupError)  # another user's process raises PermissionError, and is alive
        return False


@contextmanager
def run_lock(store: Store, wait_s: float = 0.0) -> Iterator[None]:
    """Own the root inside the block. `store` checks before every write and removal that the root is still owned.

    Raises Locked if another run still owns the root after `wait_s` seconds, with its process and host, and if another
    run takes the root over while the block runs.
    """
    deadline = time.monotonic() + wait_s
    claim = _Claim(store)
    while (owner := claim.contend()) is not None:
        if time.monotonic() >= deadline:
            raise Locked(
                f"{store.root} is in use by {owner}, running since {owner.since}; wait for it to end, or stop it and "
                "try again"
            )
        time.sleep(min(HEARTBEAT_S, max(0.0, deadline - time.monotonic())))
    with claim.beating(), store.guarded(claim.check):
        yield
        claim.check()


def owner_of(store: Store) -> Owner | None:
    """The run that owns the root now, by this machine's clock; None if no run does."""
    return _Claim(store).live(time.time())


class _Claim:
    """The claim file of one contender. The file's time of change is the time of its last heartbeat."""

    def __init__(self, store: Store) -> None:
        self._store = Store(store.root)  # `store` would check this very claim before it writes it
        self._path = ""
        self._renewed = 0.0
        self._lost = False
        since = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
        owner = Owner(
            token=uuid.uuid4().hex,
            host=socket.gethostname(),
            pid=os.getpid(),
            pids=_pid_space(),
            since=since,
            stale_s=STALE_S,
        )
        self._content = owner.model_dump_json().encode()

    def contend(self) -> Owner | None:
        """Claim the root. Returns None if this claim owns it now, else the owner of another live claim."""
        while True:
            claims = self._others()
            owner = self.live(self._now_s()) if claims else None
            if owner is not None:
                return owner
            number = max((_number(path) for path in claims), default=0) + 1
            path = f"lock/{number:08d}.json"
            self._renewed = time.monotonic()
            if not self._store.create_file(path, self._content) and self._store.read_all([path]) != [self._content]:
                continue  # another run was faster
            self._path = path
            claims = self._others()
            if claims and self.live(self._now_s()) is not None:
                self.release()  # this process was slow: another run owns the root by now
                self._path = ""
                continue
            for stale in claims:
                self._store.delete(stale)
            return None

    def live(self, now_s: float) -> Owner | None:
        """The owner of the first of the other claims that has a recent heartbeat; None if none has."""
        for path in self._others():
            beat = self._store.modified_s(path)
            (content,) = self._store.read_all([path])
            if beat is None or content is None:
                continue  # released meanwhile
            owner = _parsed(content)
            if now_s - beat <= owner.stale_s and not owner.is_dead_neighbour():
                return owner
        return None

    def _others(self) -> list[str]:
        """The paths of the other claims, in order of their numbers."""
        paths = self._store.files("lock", ".json")
        return sorted((path for path in paths if path != self._path), key=lambda path: (_number(path), path))

    def _now_s(self) -> float:
        """The time by the store's clock, which stamps heartbeats."""
        probe = f"lock/{TEMPORARY}{uuid.uuid4().hex}"
        self._store.write_bytes(probe, b"")
        now = self._store.modified_s(probe)
        self._store.delete(probe)
        return time.time() if now is None else now

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
        """Remove the claim file, unless it is another run's by now, so that other runs can own the root."""
        if self._is_mine():
            self._store.delete(self._path)

    def check(self) -> None:
        """Raise Locked if another run has removed this claim."""
        self._lost = self._lost or not self._is_mine()
        if self._lost:
            raise Locked(
                f"another run took over {self._store.root} while this one was suspended; this one has written nothing "
                "since: run again when the other has ended"
            )

    def _is_mine(self) -> bool:
        """True if the claim file still has this claim: its number may be another run's by now."""
        return self._store.read_all([self._path]) == [self._content]

    def _beat(self, stop: threading.Event) -> None:
        """Renew the claim every HEARTBEAT_S seconds until `stop` is set or the claim is lost."""
        while not self._lost and not stop.wait(HEARTBEAT_S):
            with suppress(OSError):  # a full or unreachable store: the next beat tries again
                self._renew()

    def _renew(self) -> None:
        """Write the claim file again, which is its heartbeat. Sets `_lost` if another run has taken over the root."""
        last_renewal = self._renewed
        self._lost = not self._is_mine()
        if self._lost:
            return  # another run removed the file: writing would bring it back
        self._renewed = time.monotonic()
        self._store.write_bytes(self._path, self._content)
        # If this process was suspended after that check, another run may have removed the file and own the root: the
        # write then brought the file back, and it is removed again.
        if time.monotonic() - last_renewal > STALE_S and self.live(self._now_s()) is not None:
            self._lost = True
            self.release()


def _parsed(content: bytes) -> Owner:
    """The owner that a claim names; an unknown one if it cannot be read."""
    try:
        return Owner.model_validate_json(content)
    except ValidationError:
        return Owner()


def _number(path: str) -> int:
    """The number of a claim by its path; 0 for a file of another name, which is no number of a claim."""
    digits = path.rpartition("/")[2].removesuffix(".json")
    return int(digits) if digits.isdecimal() else 0


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
