"""Ctrl-C and SIGTERM end a command and the processes that it started."""

from __future__ import annotations

import os
import signal
import sys
import threading
from contextlib import suppress
from typing import Any

from typer.core import TyperGroup

from jobs.commands.terminal import complain


class _Terminated(KeyboardInterrupt):
    """SIGTERM, as when a node is taken back: it ends a command as Ctrl-C does."""


def _terminate(number: int, frame: Any) -> None:
    raise _Terminated


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
