"""The command without Ray as processes that begin where torch and transformers are imported already.

Importing both takes most of what such a process costs. Variables that torch or transformers read on import are those
of the tests, all others are those of the process: modules of `jobs` are imported anew.
"""

import ctypes
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import tempfile
from multiprocessing.connection import wait
from pathlib import Path

_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(["torch", "datasets", "lrp_core.loading", "transformers.models.gpt2.modeling_gpt2"])


class Forked:
    """`python -m tests.jobs.inline *arguments` in a process group of its own, with the methods of a Popen.

    `inside` is the id of a process whose user and mount name spaces it enters.
    """

    def __init__(self, *arguments: str, inside: int | None = None, **environment: str) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self._streams = [Path(self._folder.name) / name for name in ("out", "err")]
        for stream in self._streams:
            stream.touch()
        variables = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")} | environment
        self._process = _FORKS.Process(target=_run, args=(arguments, variables, self._streams, inside))
        self._process.start()
        self.pid = self._process.pid

    @property
    def returncode(self) -> int | None:
        """None as long as it runs."""
        return self._process.exitcode

    def poll(self) -> int | None:
        return self.returncode

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """(stdout, stderr) once it has ended; raises TimeoutExpired."""
        if not wait([self._process.sentinel], timeout):
            raise subprocess.TimeoutExpired("closelook", timeout)
        self._process.join()
        out, err = (stream.read_text(encoding="utf-8") for stream in self._streams)
        self._folder.cleanup()
        return out, err


def _run(arguments, variables, streams, inside) -> None:
    os.setsid()
    for number, stream in enumerate(streams, start=1):
        os.dup2(os.open(stream, os.O_WRONLY | os.O_APPEND), number)
    for space in ("user", "mnt") if inside else ():
        _enter(f"/proc/{inside}/ns/{space}")
    os.environ.clear()
    os.environ.update(variables)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # tests in the background ignore it
    sys.argv = ["closelook", *arguments]
    runpy.run_module("tests.jobs.inline", run_name="__main__")


def _enter(space: str) -> None:
    with open(space) as file:
        if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), 0):
            raise OSError(ctypes.get_errno(), f"cannot enter {space}")
