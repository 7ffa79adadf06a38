"""One run per root: a lease with an owner and a heartbeat, on any file system that can list files.

Object stores have no exclusive create here, so a contender writes a claim of its own, lets others' writes settle, and
looks: a held claim wins, else the earliest. Claims whose heartbeat stopped are ignored. Ages are measured by the
store's clock. Shards are atomic and deterministic, so even two owners at once would waste work and harm nothing.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from jobs.store import Store

HEARTBEAT_S = 10.0
STALE_S = 60.0
SETTLE_S = 0.3


class Locked(RuntimeError):
    """Another run owns the root."""


@contextmanager
def run_lock(store: Store, wait_s: float = 0.0) -> Iterator[None]:
    """Own the root while inside. Raises Locked, saying who owns it, when that is still so after `wait_s` seconds."""
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
    with claim.beating():
        yield


class _Claim:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._path = f"lock/{time.time_ns():020d}-{uuid.uuid4().hex[:8]}.json"
        self._since = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())

    def contend(self) -> dict[str, Any] | None:
        """None when the claim is now held, else the record of the one that has precedence."""
        self._write(held=False)
        time.sleep(SETTLE_S)
        for held in (False, True):  # look, announce, look again: two that announced at once both see it
            owner = self._precedent(also_waiting=not held)
            if owner is not None:
                return owner
            if not held:
                self._write(held=True)
                time.sleep(SETTLE_S)
        return None

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

    def _beat(self, stop: threading.Event) -> None:
        while not stop.wait(HEARTBEAT_S):
            with suppress(OSError):  # a full or unreachable store: the next beat tries again
                self._write(held=True)

    def _write(self, held: bool) -> None:
        record = {"host": socket.gethostname(), "pid": os.getpid(), "since": self._since, "held": held}
        self._store.write_bytes(self._path, json.dumps(record).encode())

    def _precedent(self, also_waiting: bool) -> dict[str, Any] | None:
        """The record of another live claim that is held, or that waits and came earlier."""
        now = self._store.modified_s(self._path) or time.time()
        for path in self._store.files("lock", ".json"):
            beat = self._store.modified_s(path)
            if path == self._path or beat is None:
                continue
            try:
                record = json.loads(self._store.read_bytes(path))
            except FileNotFoundError:
                continue  # released meanwhile
            earlier = path < self._path
            if now - beat > STALE_S or _is_dead_neighbour(record):
                self._store.delete(path)
            elif (record["held"] and earlier) or (also_waiting and (record["held"] or earlier)):
                return record
        return None


def _is_dead_neighbour(record: dict[str, Any]) -> bool:
    """Whether the claim is of a process of this machine that is gone, so that a killed run need not be waited out."""
    if record["host"] != socket.gethostname():
        return False
    try:
        os.kill(record["pid"], 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False
