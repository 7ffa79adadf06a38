"""A driver that dies, an object store that fails: resumed runs end with the relevance of an undisturbed run."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from closelook.jobs.plan.cells import make_plan
from closelook.jobs.runner import driver as stage
from closelook.jobs.runner.worker import Worker
from closelook.jobs.store import Ledger, Store
from closelook.jobs.store.lock import Locked, run_lock
from tests.jobs.small import config_of, prepared, relevance_of, rows_of
from tests.patience import wait_for
from tests.stages import attribute

ROWS = rows_of(24)
REPOSITORY = Path(__file__).parents[3]

#: Attribution in a process of its own that commits two units and then waits to be killed.
DRIVER = """
import sys, time
from pathlib import Path
from closelook.jobs.runner import driver as stage
from closelook.jobs.store import Ledger, Store
from closelook.jobs.runner.worker import Worker
from tests.jobs.small import config_of
from tests.stages import attribute

class Stuck(Worker):
    def __call__(self, table):
        self.units = getattr(self, "units", 0) + 1
        if self.units > 2:
            time.sleep(600)
        return super().__call__(table)

stage.Worker = Stuck
config = config_of(sys.argv[1], Path(sys.argv[2]))
attribute(config, Store(config.root))
"""


def shards(store: Store) -> set[str]:
    return set(store.files("relevance", recursive=True))


class Interrupted(Worker):
    """Commits its first two units and cannot write a third."""

    def __call__(self, table):
        self.units = getattr(self, "units", 0) + 1
        if self.units > 2:
            self._run = self._lost
        return super().__call__(table)

    def _lost(self, task, rows):
        raise OSError("connection lost")


@pytest.mark.ray
def test_a_run_continues_after_its_driver_was_killed(expected, tmp_path, model, inline):
    config = config_of(tmp_path / "root", model)
    store = prepared(config, ROWS)
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY / "src")}
    arguments = [sys.executable, "-c", DRIVER, config.root, str(model)]
    with subprocess.Popen(arguments, env=environment, start_new_session=True, stderr=subprocess.DEVNULL) as driver:
        try:
            wait_for(lambda: len(shards(store)) >= 3)
        finally:
            os.killpg(driver.pid, signal.SIGKILL)
    committed = {path: store.modified_s(path) for path in shards(store)}
    assert not any(record["state"] == "complete" for _, record in Ledger(store).records("relevance"))
    assert attribute(config, store).complete
    assert relevance_of(config, store) == expected
    assert {path: store.modified_s(path) for path in committed} == committed, "nothing was computed again"


def test_an_interrupted_run_on_an_object_store_is_resumed(expected, bucket, model, monkeypatch, inline):
    config = config_of(f"s3://{bucket}/run", model)
    store = prepared(config, ROWS)
    with monkeypatch.context() as patch:
        patch.setattr(stage, "Worker", Interrupted)
        summary = attribute(config, store)
    assert summary.failures == ("connection lost",)
    committed = {path: store.modified_s(path) for path in shards(store)}
    assert len(committed) == 2 * 3, "units and cells"
    assert attribute(config, store).complete
    assert relevance_of(config, store) == expected
    assert {path: store.modified_s(path) for path in committed} == committed
    assert attribute(config, store).computed == 0


def test_one_run_owns_an_object_store(bucket):
    store = Store(f"s3://{bucket}/locked")
    with run_lock(store), pytest.raises(Locked, match="in use by process"), run_lock(store):
        pytest.fail("two owners")
    assert store.files("lock", ".json") == []


def test_no_credential_reaches_a_manifest(expected, bucket, model):
    store = Store(f"s3://{bucket}/run")
    for planned in make_plan(config_of(store.root, model), store).cells():
        text = store.read_bytes(f"manifest/{planned.artifact.name}.json").decode()
        assert "secret" not in text.lower()
        assert "access_key" not in text.lower()
