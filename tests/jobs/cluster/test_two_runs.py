"""Two submissions of the same job at once: one waits or refuses, and a crashed one is taken over.

What is disturbed or waits is a process of its own; what comes after it is the command in this one. Ray plays no part in
who owns a root, so all do without.
"""

import os
import signal
import time

import pytest

from closelook.jobs.store import lock
from closelook.jobs.store.lock import is_asked
from tests.jobs.forked import Forked
from tests.jobs.inline import HOLD
from tests.jobs.small import config_of, ended, prepared, relevance_of, rows_of
from tests.patience import PATIENCE_S, wait_for

ROWS = rows_of(24)
pytestmark = pytest.mark.usefixtures("inline")


@pytest.fixture
def job(tmp_path, model):
    """(arguments, config, store) of the same run under a root of its own."""
    config = config_of(tmp_path / "root", model)
    store = prepared(config, ROWS)
    path = tmp_path / "small.yaml"
    path.write_text(config.model_dump_json())
    return ("attribute", "--config", str(path)), config, store


@pytest.fixture
def held(job, tmp_path):
    """Start the job with some environment; gives the process when it has committed two units of three and waits."""
    processes = []

    def start(**environment):
        process = Forked(*job[0], **{HOLD: str(tmp_path)}, **environment)
        processes.append(process)
        wait_for(lambda: (tmp_path / "holding").exists() or process.poll() is not None)
        assert process.poll() is None, process.communicate()
        return process

    yield start
    for process in processes:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


def test_of_runs_at_once_one_completes_one_is_refused_with_a_line_and_one_may_wait(
    expected, job, held, tmp_path, closelook
):
    arguments, config, store = job
    owner = held()
    waiting = Forked(*arguments, "--wait", str(PATIENCE_S))
    refused, out, line = closelook(*arguments)
    assert (refused, out) == (1, "")
    assert line.startswith(f"error: {store.root} is in use by process {owner.pid} on ")
    assert len(line.splitlines()) == 1
    assert waiting.poll() is None
    (tmp_path / "go").touch()
    for process, message in ((owner, "attribute: 3 computed, 0 up to date"), (waiting, "nothing to do")):
        code, out, err = ended(process)
        assert code == 0, err
        assert message in out
    assert relevance_of(config, store) == expected


def test_of_two_runs_that_start_at_once_exactly_one_completes(expected, job, tmp_path):
    arguments, config, store = job
    both = [Forked(*arguments, **{HOLD: str(tmp_path)}) for _ in range(2)]
    wait_for(lambda: any(process.poll() is not None for process in both))  # the owner goes on when one is refused
    (tmp_path / "go").touch()
    (code, _, quiet), (refused, _, line) = sorted((ended(process) for process in both), key=lambda end: end[0])
    assert (code, refused) == (0, 1), quiet + line
    assert any(f"is in use by process {process.pid} on" in line for process in both)
    assert relevance_of(config, store) == expected


def test_the_lock_of_a_run_that_was_killed_is_taken_over_at_once(expected, job, held, closelook):
    arguments, config, store = job
    killed = held()
    os.killpg(killed.pid, signal.SIGKILL)
    killed.communicate()
    assert len(store.files("lock", ".json")) == 1, "it could not release its lock"
    code, out, err = closelook(*arguments)
    assert code == 0, err
    assert "attribute: 3 computed, 0 up to date" in out
    assert store.files("lock", ".json") == []
    assert relevance_of(config, store) == expected


def test_a_driver_that_stood_still_while_another_took_over_exits_and_writes_no_claim_and_no_manifest(
    expected, job, held, tmp_path, closelook, monkeypatch
):
    arguments, config, store = job
    paused = held(CLOSELOOK_LOCK_STALE_S="5")
    os.kill(paused.pid, signal.SIGSTOP)
    monkeypatch.setattr(lock, "HEARTBEAT_S", 1.0)
    code, out, err = closelook(*arguments, "--wait", str(PATIENCE_S))
    assert code == 0, err
    assert "attribute: 3 computed, 0 up to date" in out
    written = {path: store.modified_s(path) for path in store.files("manifest", ".json")}
    (tmp_path / "go").touch()
    os.kill(paused.pid, signal.SIGCONT)
    code, out, err = ended(paused)
    assert code == 1
    assert f"error: another run took over {store.root} while this one was suspended" in err
    assert "Traceback" not in err
    assert store.files("lock", ".json") == []
    assert {path: store.modified_s(path) for path in store.files("manifest", ".json")} == written
    assert relevance_of(config, store) == expected


def test_a_driver_that_stood_still_and_was_not_missed_goes_on(expected, job, held, tmp_path):
    _, config, store = job
    paused = held(CLOSELOOK_LOCK_STALE_S="2")
    os.kill(paused.pid, signal.SIGSTOP)
    time.sleep(4)
    (tmp_path / "go").touch()
    os.kill(paused.pid, signal.SIGCONT)
    code, _, err = ended(paused)
    assert code == 0, err
    assert relevance_of(config, store) == expected


def test_a_run_that_is_told_to_end_drops_its_unit_and_lets_go_of_the_root(expected, job, held, closelook):
    """SIGTERM in the middle of a unit that never ends, as when a node is taken back; the next run does the rest."""
    arguments, config, store = job
    process = held()
    process.send_signal(signal.SIGTERM)
    code, _, err = ended(process)
    assert code == 143, err
    assert "stopped; run the same command again to continue" in err
    assert store.files("lock", ".json") == []
    assert store.temporaries() == []
    code, _, err = closelook(*arguments)
    assert code == 0, err
    assert relevance_of(config, store) == expected


def test_a_run_that_is_asked_to_stop_commits_its_unit_begins_no_other_and_the_next_goes_on(
    expected, job, held, tmp_path, closelook
):
    arguments, config, store = job
    process = held()
    committed = len(store.files("relevance", recursive=True))
    code, out, err = closelook("stop", config.root)
    assert (code, err) == (0, "")
    assert f"process {process.pid} on " in out
    (tmp_path / "go").touch()
    code, out, err = ended(process)
    assert code == 1, err
    assert "stopped; run the same command again to continue" in err
    assert len(store.files("relevance", recursive=True)) == committed, "the unit that waited was not begun"
    assert store.files("lock", "") == []
    code, _, err = closelook("stop", config.root)
    assert (code, err.strip()) == (2, f"error: no run is using {config.root}: there is nothing to stop")
    code, _, err = closelook(*arguments)
    assert code == 0, err
    assert relevance_of(config, store) == expected


def test_a_run_that_is_told_to_end_ends_by_itself_once_its_unit_is_done(expected, job, held, tmp_path):
    _, _, store = job
    process = held()
    process.send_signal(signal.SIGTERM)
    wait_for(lambda: is_asked(store))
    (tmp_path / "go").touch()
    code, _, err = ended(process)
    assert (code, "stopped; run the same command again" in err) == (143, True), err
    assert store.files("lock", "") == []
