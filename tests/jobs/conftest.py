"""One local Ray for all the tests of a module, and the command line."""

import sys

import pytest
from rich.console import Console

from jobs import __main__ as cli
from jobs.config import RunConfig
from jobs.pools import connect


@pytest.fixture(scope="module")
def local_ray():
    """Ray inside this process, on two CPUs and loopback only."""
    connect(RunConfig.load("smoke"))
    import ray

    yield ray
    ray.shutdown()


@pytest.fixture
def closelook(monkeypatch, capsys):
    """Run the command in this process: (exit code, stdout, stderr)."""

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["closelook", *arguments])
        monkeypatch.setattr(cli, "console", Console(highlight=False, soft_wrap=True, width=200))
        monkeypatch.setattr(cli, "errors", Console(stderr=True, highlight=False, soft_wrap=True, width=200))
        code = 0
        try:
            cli.main()
        except SystemExit as end:
            code = int(end.code or 0)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run
