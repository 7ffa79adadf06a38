"""Processes without a running Ray that begin where torch and transformers are imported already.

Importing both takes most of what such a process costs. Variables that torch or transformers read on import are those
of the tests, all others are those of the process: modules of `jobs` are imported anew. Modules are looked for in the
folders of PYTHONPATH first.
"""

import ctypes
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from multiprocessing.connection import wait
from pathlib import Path

from closelook.jobs.cluster.reports import Report, reports_in

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(
    [
        "torch",
        "datasets",
        "closelook.lrp_core.opening.loading",
        "transformers.models.gpt2.modeling_gpt2",
        "ray.cloudpickle",
        "pydantic",
        "rich.console",
        "typer",
        "matplotlib.backends.backend_pdf",  # of reports, as is pytest of the tests' modules that have the workers
        "pytest",
    ]
)


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
        self._process = FORKS.Process(target=_run, args=(arguments, variables, self._streams, inside))
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
    sys.path[:0] = [folder for folder in variables.get("PYTHONPATH", "").split(os.pathsep) if folder]
    signal.signal(signal.SIGINT, signal.default_int_handler)  # tests in the background ignore it
    sys.argv = ["closelook", *arguments]
    runpy.run_module("tests.jobs.inline", run_name="__main__")


def _enter(space: str) -> None:
    with open(space) as file:
        if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), 0):
            raise OSError(ctypes.get_errno(), f"cannot enter {space}")


def pipeline(config, stage, work, share) -> Iterator[Report]:
    """The units of a work, one by one, through a worker in a process of its own, for `Inline.stream`.

    As Ray does, it starts another process when one dies, which gets the unit again, and raises what a worker raises.
    """
    from ray import cloudpickle

    pickled, units = cloudpickle.dumps((work.worker, work.arguments)), work.reader()()
    unit, starts = next(units, None), 0
    while unit is not None:
        starts += 1
        assert starts < 20, f"stage {stage} starts worker after worker"
        parent_end, child_end = FORKS.Pipe()
        process = FORKS.Process(target=_work, args=(child_end, pickled), daemon=True)
        process.start()
        child_end.close()
        try:
            while unit is not None:
                parent_end.send(unit)
                answer = parent_end.recv()  # raises EOFError, as `send` does OSError, when the process is dead
                if isinstance(answer, Exception):
                    raise answer
                yield from answer
                unit = next(units, None)
        except (EOFError, ConnectionError):
            pass
        finally:
            parent_end.close()
            process.join()


def _work(connection, pickled) -> None:
    from ray import cloudpickle

    worker, arguments = cloudpickle.loads(pickled)
    try:
        call = worker(*arguments)
        while True:
            connection.send(reports_in(call(connection.recv())))
    except EOFError:
        pass
    except Exception as error:
        connection.send(error)
