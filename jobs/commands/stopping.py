"""Ends a command, and the processes that it started, on Ctrl-C and SIGTERM."""

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

from closelook.lrp_core.records.types import UserError
from closelook.terminal import complain, say

if TYPE_CHECKING:
    from closelook.jobs.store import Store

GRACE_S = 12.0  # time for units in progress, of the 20 to 30 s that clusters leave between SIGTERM and SIGKILL


class _Terminated(KeyboardInterrupt):
    """Raised on SIGTERM, such as when a node is taken away: it ends a command as Ctrl-C does."""


class _Owned:
    """The root whose run this process is (None: no run), and True once SIGTERM has come."""

    store: Store | None = None
    is_terminated = False


def _terminate(number: int, frame: Any) -> None:
    """The handler of SIGTERM: end the command; let a run first commit its units in progress, for GRACE_S at most."""
    if _Owned.store is None or _Owned.is_terminated:
        raise _Terminated
    _Owned.is_terminated = True
    from closelook.jobs.store import lock

    lock.ask_to_stop(_Owned.store)
    timer = threading.Timer(GRACE_S, os.kill, (os.getpid(), signal.SIGTERM))
    timer.daemon = True
    timer.start()


@contextmanager
def stoppable(store: Store) -> Iterator[None]:
    """Let `closelook stop` and SIGTERM end the run inside the block once its units in progress are committed.

    The run must own the root of `store`. At its end raises typer.Exit, with 1 after `closelook stop` or 143 after
    SIGTERM.
    """
    from closelook.jobs.store import lock

    lock.forget_request(store)  # an old request, for a run that was killed
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
    from closelook.jobs.store import lock

    owner = lock.owner_of(store)
    if owner is None:
        raise UserError(f"no run is using {store.root}: there is nothing to stop")
    lock.ask_to_stop(store)
    say(f"{owner} finishes its units in progress and then ends")


def _end_children() -> None:
    """Kill the child processes of this command, including a local Ray. A cluster that it joined notices by itself.

    `ray.shutdown()` is not called: threads of models that still call Ray would then end this process with exit code 1.
    """
    import psutil

    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            child.kill()


class Stoppable(TyperGroup):
    """The command group: Ctrl-C and SIGTERM end its commands with one line and exit code 130 or 143."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command with a handler for SIGTERM, and end the process on Ctrl-C or SIGTERM."""
        in_main_thread = threading.current_thread() is threading.main_thread()
        before = signal.signal(signal.SIGTERM, _terminate) if in_main_thread else None
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as why:
            complain("stopped; run the same command again to continue")
            sys.stdout.flush()
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # hides errors of threads whose Ray is killed
            try:
                _end_children()
            finally:
                os._exit(143 if isinstance(why, _Terminated) else 130)  # sys.exit would wait for those threads
        finally:
            if in_main_thread:
                signal.signal(signal.SIGTERM, before or signal.SIG_DFL)
