"""Workers that serve one model after another: each is explained as by workers of its own, and fails alone."""

import os
import shutil
import signal
from types import SimpleNamespace

import pytest

from closelook.jobs.cluster.executor import IN_HAND, Host, share_hosts
from closelook.jobs.plan.cells import make_plan
from closelook.jobs.runner import driver as stage
from closelook.jobs.runner.worker import Worker
from closelook.jobs.store import Ledger
from tests.jobs.small import config_of, prepared, relevance_of, rows_of
from tests.stages import attribute

ROWS = rows_of(16)


@pytest.mark.ray
def test_more_models_than_places_share_processes_and_fail_alone(tmp_path, model, expected, monkeypatch, local_ray):
    """Loading `deadly` kills its process; that of `killed` dies once in the middle of a unit."""
    opened, mark = tmp_path / "opened", tmp_path / "killed-once"

    class Faulty(Worker):
        def _open(self, dtype):
            with opened.open("a") as file:
                file.write(f"{self._model.config.name} {os.getpid()}\n")
            if self._model.config.name == "deadly":
                os.kill(os.getpid(), signal.SIGKILL)
            return super()._open(dtype)

        def _commit(self, *arguments):
            if self._model.config.name == "killed" and not mark.exists():
                mark.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            return super()._commit(*arguments)

    monkeypatch.setattr(stage, "Worker", Faulty)
    folders = [shutil.copytree(model, tmp_path / name) for name in ("first", "deadly", "killed", "last")]
    config = config_of(tmp_path / "root", *folders, max_attempts=2)
    store = prepared(config, ROWS)
    (failure,) = attribute(config, store).failures
    assert failure.startswith("model deadly: loading it ended 2 processes")
    assert mark.exists()
    for folder in folders:
        if folder.name != "deadly":
            relevance = relevance_of(config_of(config.root, folder), store)
            assert {name.replace(f" {folder.name}/", " gpt2/"): table for name, table in relevance.items()} == expected
    states = {
        (planned.artifact.model, Ledger(store).state(planned.artifact)) for planned in make_plan(config, store).cells()
    }
    assert states == {("deadly", "missing"), *((folder.name, "done") for folder in folders if folder.name != "deadly")}
    processes = {line.split()[1] for line in opened.read_text().splitlines()}
    most = 2 + 1 + 2 * IN_HAND
    assert len(processes) <= most, "two hosts, and one for each death: of `killed`, and two for each unit of `deadly`"
    assert all("deadly" in path for path in store.files("attempts", ".json", recursive=True)), "the next run begins it"


class Counter:
    """A worker of a model that counts the units it was given."""

    made = 0

    def __init__(self, name):
        type(self).made += 1
        self.name, self.units = name, 0

    def __call__(self, table):
        self.units += 1
        return self.name, self.units, table

    def inherit(self, before):
        self.before = before and before.name


def test_a_host_has_one_worker_at_a_time_which_may_take_over_from_the_one_before():
    host = Host()
    assert host.run("1", (Counter, ("a",)), "x") == ("a", 1, "x")
    assert host.run("1", (Counter, ("a",)), "y") == ("a", 2, "y")
    assert host.run("2", (Counter, ("b",)), "x") == ("b", 1, "x")
    assert host._worker.before == "a"
    assert Counter.made == 2


@pytest.mark.parametrize(("workers", "shared"), [([(1, 1)] * 2, True), ([(1, 1), (1, 2)], False)])
def test_models_that_ask_for_one_worker_each_go_through_warm_processes(workers, shared):
    works = [SimpleNamespace(model=SimpleNamespace(workers=bounds)) for bounds in workers]
    assert share_hosts(works) is shared
