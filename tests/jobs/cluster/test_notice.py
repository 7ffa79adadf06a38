"""SIGTERM of a worker: the unit in hand is finished, or dropped without blame, and no other begins."""

import signal
import subprocess
import sys

import pytest

from closelook.jobs.cluster import reports as notice
from closelook.jobs.cluster.attempts import Attempts, excuse_all
from closelook.jobs.store import Store
from tests.patience import PATIENCE_S

#: A worker with a unit that ends after the notice, if at all, and then another.
WORKER = """
import sys, time
from closelook.jobs.cluster import reports as notice
notice.FINISH_S, notice.LINGER_S = float(sys.argv[1]), 0.0
notice.NOTICE.heed()
with notice.NOTICE.unit():
    print("begun", flush=True)
    while not notice.NOTICE.given or sys.argv[2] == "dropped":
        time.sleep(0.01)
    print("done", flush=True)
with notice.NOTICE.unit():
    print("another", flush=True)
"""


@pytest.mark.parametrize(("finish_s", "outcome", "last"), [(600, "finished", "done\n"), (0.1, "dropped", "")])
def test_a_worker_finishes_or_drops_its_unit_and_begins_no_other(finish_s, outcome, last):
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    arguments = [sys.executable, "-c", WORKER, str(finish_s), outcome]
    with subprocess.Popen(arguments, text=True, **pipes) as worker:
        assert worker.stdout.readline() == "begun\n"
        worker.send_signal(signal.SIGTERM)
        out, err = worker.communicate(timeout=PATIENCE_S)
    assert worker.returncode == 143
    assert (out, err.splitlines()[-1]) == (last, f"SIGTERM: its units are {outcome}")


def test_a_worker_takes_no_more_than_20_seconds_of_a_notice():
    assert notice.FINISH_S + notice.EXCUSE_S + notice.LINGER_S < 20


@pytest.mark.parametrize("excused", [True, False])
def test_a_batch_that_is_dropped_is_not_to_blame(excused, tmp_path, monkeypatch):
    """As in a process that ends while a batch runs that another process had begun before."""
    monkeypatch.setattr("closelook.jobs.cluster.attempts._BEGUN", set())
    store = Store(str(tmp_path))
    Attempts(store, "unit", 1, "run").begin()
    running = Attempts(store, "unit", 1, "run")
    running.begin()
    assert not running.note_batch("0")
    if excused:
        excuse_all()
    after = Attempts(store, "unit", 1, "run")
    after.begin()
    assert after.note_batch("0") is not excused
    after.clear()
