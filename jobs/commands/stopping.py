"""Ctrl-C and SIGTERM end a command and the processes that it started."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperGroup

from jobs.commands.terminal import complain, say
from lrp_core.records.types import UserError

if TYPE_CHECKING:
    from jobs.store import Store

GRACE_S = 12.0  # for units in hand, of the 20 to 30 s that clusters leave between SIGTERM and SIGKILL


class _Terminated(KeyboardInterrupt):
    """SIGTERM, as when a node is taken back: it ends a command as Ctrl-C does."""


class _Owned:
    """The root whose run this process is, and the time when SIGTERM came."""

    store: Store | None = None
    is_terminated = False


def _terminate(number: int, frame: Any) -> None:
    """End the command; a run ends by itself when the units in hand are committed, as far as they are soon enough."""
    if _Owned.store is None or _Owned.is_terminated:
        raise _Terminated
    _Owned.is_terminated = True
    from jobs.store import lock

    lock.ask_to_stop(_Owned.store)
    timer = threading.Timer(GRACE_S, os.kill, (os.getpid(), signal.SIGTERM))
    timer.daemon = True
    timer.start()


@contextmanager
def stoppable(store: Store) -> Iterator[None]:
    """A run owns the root of `store` inside: `closelook stop` and SIGTERM end it after the units in hand.

    Raises typer.Exit with 1 or 143 at the end of a run that was stopped.
    """
    from jobs.store import lock

    lock.forget_request(store)  # of a run that was killed
    _Owned.store, _Owned.is_terminated = store, False
    try:
        yield
        if lock.is_asked(store):
            complain("stopped; run the same command again to continue")
            raise typer.Exit(143 if _Owned.is_terminated else 1)
    finally:
        _Owned.store = None
        lock.forget_request(store)


def stop(store: Store) -> None:
    """Ask the run that owns the root to stop. Raises UserError if no run owns it."""
    from jobs.store import lock
    from jobs.store.lock import owner_of

    owner = owner_of(store)
    if owner is None:
        raise UserError(f"no run owns {store.root} now")
    lock.ask_to_stop(store)
    say(f"process {owner['pid']} on {owner['host']} begins no further unit and ends after those in hand")


def _end_children() -> None:
    """Kill the child processes of this command, a Ray of its own among them; a cluster that it joined sees it go.

    Not `ray.shutdown()`: a thread of a model that then still calls Ray ends this process, with exit code 1.
    """
    import psutil

    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            child.kill()


class Stoppable(TyperGroup):
    """Commands that Ctrl-C and SIGTERM end with one line, and with 130 or 143 as shells expect."""

    def invoke(self, ctx: Any) -> Any:
        in_main_thread = threading.current_thread() is threading.main_thread()
        before = signal.signal(signal.SIGTERM, _terminate) if in_main_thread else None
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as why:
            complain("stopped; run the same command again to continue")
            sys.stdout.flush()
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # the models' threads complain of what is taken from them
            try:
                _end_children()
            finally:
                os._exit(143 if isinstance(why, _Terminated) else 130)  # sys.exit would wait for those threads
        finally:
            if in_main_thread:
                signal.signal(signal.SIGTERM, before or signal.SIG_DFL)
