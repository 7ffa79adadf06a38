"""One local Ray and one small model for all the tests of a module, and the command line."""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from jobs import __main__ as cli
from jobs.cluster import scheduler
from jobs.cluster.pools import Slots, connect
from jobs.config import RunConfig
from jobs.plan.inputs import read_unit
from jobs.stages.attribute import attribute
from tests.jobs.small import config_of, prepared, relevance_of, save_model


@pytest.fixture(scope="module")
def local_ray():
    """Ray inside this process, on two CPUs and loopback only."""
    connect(RunConfig.load("smoke"))
    import ray

    yield ray
    ray.shutdown()


@pytest.fixture
def inline(monkeypatch):
    """Stages without Ray: the units of a work go through one worker in this process, which takes a second.

    One model at a time: transformers does not load two in one process at once. `before_unit(index)` of what it gives
    is called before each unit.
    """
    hooks = SimpleNamespace(before_unit=lambda index: None)

    def pipeline(config, store, stage, work, share, workers):
        worker = work.worker(*work.arguments)
        for index, block in enumerate(work.blocks):
            hooks.before_unit(index)
            yield from worker(read_unit(block, store)).to_pylist()

    monkeypatch.setattr(scheduler, "connect", lambda config: None)
    monkeypatch.setattr(scheduler, "uses_gpu", lambda config: False)
    monkeypatch.setattr(scheduler, "cluster_slots", lambda config, on_gpu: Slots([({}, 1)]))
    monkeypatch.setattr(scheduler, "pipeline", pipeline)
    return hooks


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


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    """The directory of a one-layer GPT-2 with random weights."""
    return save_model(tmp_path_factory.mktemp("models") / "gpt2")


@pytest.fixture(scope="module")
def expected(request, tmp_path_factory, model, local_ray):
    """The relevance of an undisturbed run on the test module's ROWS."""
    config = config_of(tmp_path_factory.mktemp("undisturbed"), model)
    store = prepared(config, request.module.ROWS)
    assert attribute(config, store).complete
    return relevance_of(config, store)
