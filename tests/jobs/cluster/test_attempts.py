"""Deaths of workers: which endings count as one, and for which unit."""

import errno
from dataclasses import replace

import pytest

from closelook.jobs.cluster.attempts import COMPUTING, Attempts
from closelook.jobs.plan.cells import make_plan
from closelook.jobs.products.record import NodeFailed
from closelook.jobs.products.relevance import RELEVANCE
from closelook.jobs.runner.rows import compute_parts
from closelook.jobs.store import Store, StoreFull
from closelook.jobs.store.retry import StillUnavailable
from tests.jobs.computing import opened_for, part_of
from tests.jobs.small import config_of, prepared, rows_of
from tests.stages import attribute

ROWS = rows_of(8)


def test_commits_that_fail_in_run_after_run_make_no_row_a_reject(tmp_path, model, monkeypatch, inline):
    import closelook.jobs.store.files

    write = closelook.jobs.store.files._write_local

    notes = []

    def failing(target, data):
        if "/relevance/model=" in target:
            notes.extend(store.files("attempts", ".json", recursive=True))
            raise OSError(errno.EIO, "Input/output error")
        write(target, data)

    config = config_of(tmp_path / "root", model, max_attempts=2)
    store = prepared(config, ROWS)
    for _ in range(6):
        with monkeypatch.context() as patch:
            patch.setattr(closelook.jobs.store.files, "_write_local", failing)
            assert "Input/output error" in attribute(config, store).failures[0]
    assert attribute(config, store).complete
    assert notes == [], "a process that dies during a commit died of something else"
    for planned in make_plan(config, store).cells():
        assert store.manifest(planned.artifact.name)["rejects"] == {}


def test_a_disk_that_is_full_when_results_are_combined_ends_the_run(tmp_path, model, monkeypatch, inline):
    """Runtimes are written then."""
    import closelook.jobs.store.files

    write = closelook.jobs.store.files._write_local

    def full(target, data):
        if "/runtime/model=" in target:
            raise OSError(errno.ENOSPC, "No space left on device")
        write(target, data)

    config = config_of(tmp_path / "root", model)
    store = prepared(config, ROWS)
    monkeypatch.setattr(closelook.jobs.store.files, "_write_local", full)
    [failure] = attribute(config, store).failures
    assert failure.startswith("no space left under")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # SystemExit, which stops it
def test_runs_that_are_stopped_while_a_batch_runs_make_no_row_a_reject(tmp_path, model, monkeypatch, inline):
    from closelook.jobs.products.explaining import Explainer

    def stopped(explainer, rows):
        raise SystemExit

    config = config_of(tmp_path / "root", model, max_attempts=1)
    store = prepared(config, ROWS)
    for _ in range(4):
        with monkeypatch.context() as patch:
            patch.setattr(Explainer, "batch", stopped)
            assert not attribute(config, store).complete
    assert attribute(config, store).complete
    for planned in make_plan(config, store).cells():
        assert store.manifest(planned.artifact.name)["rejects"] == {}


def test_a_process_that_dies_beside_a_commit_counts_against_what_it_computed_alone(tmp_path):
    """While a thread of the process commits one unit, another computes the next, and the process dies of that."""
    store = Store(str(tmp_path))
    committed, computed = (Attempts(store, name, 2, "run") for name in ("committed", "computed"))
    with committed.running():
        pass
    computed.begin()
    for name, deaths in (("committed", 0), ("computed", 1)):
        again = Attempts(store, name, 2, "run")
        again.begin()
        assert again.deaths(COMPUTING) == deaths


def test_an_error_is_no_death_but_that_of_a_lost_device(tmp_path):
    store = Store(str(tmp_path))
    for error, deaths in ((ValueError("of a row"), 0), (RuntimeError("CUDA error: device-side assert triggered"), 1)):
        with pytest.raises(type(error)), Attempts(store, "unit", 2, "run").running():
            raise error
        again = Attempts(store, "unit", 2, "run")
        again.begin()
        assert again.deaths(COMPUTING) == deaths
        again.run(None)


def test_a_reason_is_told_of_the_row_that_had_it(tmp_path):
    store = Store(str(tmp_path))
    for name, reason in (("row a", None), ("row b", "it had not ended after 5 s"), ("row c", None)):
        dying = Attempts(store, "unit", 2, "run")
        dying.begin()
        dying.run(name)
        if reason is not None:
            dying.blame(reason)
    last = Attempts(store, "unit", 2, "run")
    last.begin()
    assert [last.deaths(f"row {row}") for row in "abc"] == [1, 1, 1]
    assert [last.reason(f"row {row}") for row in "abc"] == ["", ": it had not ended after 5 s", ""]


@pytest.mark.parametrize("error", [StillUnavailable("throttled"), StoreFull(errno.ENOSPC, "full")])
def test_an_error_of_the_store_is_no_row_s_fault(error):
    def unread(opened, parts, rows):
        raise error

    product = replace(RELEVANCE, compute=unread)
    with pytest.raises(type(error)):
        compute_parts(product, opened_for(None), [part_of("lrp")], ROWS)


def test_a_batch_without_rows_that_ended_processes_fails_its_node(tmp_path):
    """As that of scores: there is no row to blame, and nothing that was computed."""
    store = Store(str(tmp_path))
    for _ in range(2):  # processes that died of it
        Attempts(store, "scores.unit", 2, "run").begin()
    attempts = Attempts(store, "scores.unit", 2, "run")
    attempts.begin()
    part = part_of("lrp")
    product = replace(RELEVANCE, compute=lambda opened, parts, rows: pytest.fail("it is computed once more"))
    outcome = compute_parts(product, opened_for(None, attempts), [part], [])[part]
    assert isinstance(outcome, NodeFailed)
    assert str(outcome) == "several processes ended while computing it"
