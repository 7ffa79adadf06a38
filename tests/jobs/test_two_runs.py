"""Two submissions of the same job at once, as processes: one waits or refuses, and a crashed one is taken over."""

import os
import signal
import time

import pytest

from jobs.stages.attribute import attribute
from tests.jobs.small import closelook, config_of, ended, prepared, relevance_of, rows_of

pytestmark = pytest.mark.ray
ROWS = rows_of(64)


@pytest.fixture(scope="module")
def expected(tmp_path_factory, model, local_ray):
    """The relevance of an undisturbed run."""
    config = config_of(tmp_path_factory.mktemp("undisturbed"), model, shard_rows=2)
    store = prepared(config, ROWS)
    assert attribute(config, store).complete
    return relevance_of(config, store)


@pytest.fixture
def job(tmp_path, model):
    """(arguments, config, store) of the same run under a root of its own."""
    config = config_of(tmp_path / "root", model, shard_rows=2)
    store = prepared(config, ROWS)
    path = tmp_path / "small.yaml"
    path.write_text(config.model_dump_json())
    return ("attribute", "--config", str(path)), config, store


def test_of_two_runs_at_once_one_is_refused_with_a_line_and_the_other_completes(expected, job):
    arguments, config, store = job
    both = [closelook(*arguments) for _ in range(2)]
    (code, _, quiet), (refused, out, line) = sorted((ended(process) for process in both), key=lambda end: end[0])
    assert (code, refused) == (0, 1), quiet + line
    assert out == ""
    assert line.startswith(f"error: {store.root} is in use by process {{}} on ".format(_owner(line)))
    assert len(line.splitlines()) == 1
    assert _owner(line) in [process.pid for process in both]
    assert relevance_of(config, store) == expected


def test_of_two_runs_at_once_one_may_wait_and_then_finds_everything_done(expected, job):
    arguments, config, store = job
    both = [closelook(*arguments, "--wait", "200") for _ in range(2)]
    ends = [ended(process) for process in both]
    assert [code for code, _, _ in ends] == [0, 0], ends
    assert sum("attribute: 3 computed, 0 up to date" in out for _, out, _ in ends) == 1
    assert sum("nothing to do" in out for _, out, _ in ends) == 1
    assert relevance_of(config, store) == expected


def test_the_lock_of_a_run_that_was_killed_is_taken_over_at_once(expected, job):
    arguments, config, store = job
    killed = closelook(*arguments)
    wait_for_a_shard(store, killed)
    os.killpg(killed.pid, signal.SIGKILL)
    killed.communicate()
    assert len(store.files("lock", ".json")) == 1, "it could not release its lock"
    code, out, err = ended(closelook(*arguments))
    assert code == 0, err
    assert "attribute: 3 computed, 0 up to date" in out
    assert store.files("lock", ".json") == []
    assert relevance_of(config, store) == expected


def test_a_driver_that_stood_still_while_another_took_over_exits_and_writes_no_claim_and_no_manifest(expected, job):
    arguments, config, store = job
    short = {"CLOSELOOK_LOCK_STALE_S": "10"}
    paused = closelook(*arguments, **short)
    wait_for_a_shard(store, paused)
    os.kill(paused.pid, signal.SIGSTOP)
    try:
        code, out, err = ended(closelook(*arguments, "--wait", "200", **short))
        assert code == 0, err
        assert "attribute: 3 computed, 0 up to date" in out
        written = {path: store.modified_s(path) for path in store.files("manifest", ".json")}
    finally:
        os.kill(paused.pid, signal.SIGCONT)
    code, out, err = ended(paused)
    assert code == 1
    assert f"error: another run took over {store.root} while this one stood still" in err
    assert "Traceback" not in err
    assert store.files("lock", ".json") == []
    assert {path: store.modified_s(path) for path in store.files("manifest", ".json")} == written
    assert relevance_of(config, store) == expected


def test_a_driver_that_stood_still_and_was_not_missed_goes_on(expected, job):
    arguments, config, store = job
    paused = closelook(*arguments, CLOSELOOK_LOCK_STALE_S="3")
    wait_for_a_shard(store, paused)
    os.kill(paused.pid, signal.SIGSTOP)
    time.sleep(6)
    os.kill(paused.pid, signal.SIGCONT)
    code, _, err = ended(paused)
    assert code == 0, err
    assert relevance_of(config, store) == expected


def wait_for_a_shard(store, process):
    deadline = time.monotonic() + 200
    while not store.files("relevance", recursive=True):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.01)


def _owner(line: str) -> int:
    return int(line.split("in use by process ")[1].split()[0])
