"""One local Ray for all modules, one small model for all the tests of a module, and the command line."""

import fcntl
import os
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
from rich.console import Console

from closelook import terminal
from closelook.evaluation.report import drawing
from closelook.jobs import __main__ as cli
from closelook.jobs.cluster.pools import connect
from closelook.jobs.config import RunConfig
from closelook.jobs.store import Store
from tests.jobs import forked
from tests.jobs.inline import without_ray
from tests.jobs.small import config_of, prepared, relevance_of, save_model
from tests.stages import attribute


def pytest_collection_modifyitems(items):
    """A cluster of several nodes takes the place of the one local Ray: it comes last, so that none starts again."""
    items.sort(key=lambda item: "cluster" in getattr(item, "fixturenames", ()))


@pytest.fixture(scope="session", autouse=True)
def last_ray():
    """Ends the Ray that the last module left."""
    yield
    if "ray" in sys.modules:
        sys.modules["ray"].shutdown()


@pytest.fixture(scope="module", autouse=True)
def blank_figures(request):
    """Figures without a drawing, but in modules marked `drawn`: to draw takes longer than the rest of a report."""
    with pytest.MonkeyPatch.context() as patch:
        if not request.node.get_closest_marker("drawn"):
            patch.setattr(drawing.Plot, "_drawn", lambda *_: None)
            patch.setattr(drawing, "_svg", lambda canvas: ('<svg xmlns="http://www.w3.org/2000/svg"></svg>', 300))
            patch.setattr(drawing, "_pdf", lambda canvas: b"%PDF-1.4")
        yield


@pytest.fixture
def undrawn(monkeypatch):
    """Reports without figures in a test of a module marked `drawn`."""
    monkeypatch.setattr(drawing.Plot, "figures", lambda *_: [])


@pytest.fixture(scope="session", autouse=True)
def quick_files():
    """Nothing waits for the disk, as no test cuts the power."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


@pytest.fixture
def store(tmp_path) -> Store:
    """An empty one."""
    return Store(str(tmp_path / "root"))


@pytest.fixture(scope="session")
def one_start(tmp_path_factory):
    """A block in which no other process of these tests starts a Ray, as each must be up within half a minute."""
    file = tmp_path_factory.getbasetemp().parent / "ray-starts.lock"

    @contextmanager
    def held():
        with file.open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    return held


@pytest.fixture(scope="module")
def local_ray(one_start):
    """Ray inside this process, on two CPUs and loopback only: modules share it, as its start takes seconds."""
    with one_start():
        connect(RunConfig.load("smoke"))
    return sys.modules["ray"]


@pytest.fixture
def inline():
    """Stages without Ray; `before_unit(index)` of the executor is called before each unit."""
    with without_ray() as executor:
        yield executor


@pytest.fixture
def restarted(inline):
    """Stages without Ray whose workers are processes, which are started again when they die."""
    inline.stream = forked.pipeline


@pytest.fixture
def closelook(monkeypatch, capsys):
    """Run the command in this process: (exit code, stdout, stderr)."""

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["closelook", *arguments])
        monkeypatch.setattr(terminal, "console", Console(highlight=False, soft_wrap=True, width=200))
        monkeypatch.setattr(terminal, "errors", Console(stderr=True, highlight=False, soft_wrap=True, width=200))
        code = 0
        capsys.readouterr()  # leaves out what stages that the test called itself have said
        try:
            cli.main()
        except SystemExit as end:
            code = int(end.code or 0)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    """The directory of a one-layer GPT-2 with random weights."""
    return save_model(tmp_path_factory.mktemp("models") / "gpt2")


@pytest.fixture(scope="module")
def expected(request, tmp_path_factory, model):
    """The relevance of an undisturbed run on the test module's ROWS."""
    config = config_of(tmp_path_factory.mktemp("undisturbed"), model)
    store = prepared(config, request.module.ROWS)
    with without_ray():
        assert attribute(config, store).complete
    return relevance_of(config, store)
