"""Deaths of workers: which endings count as one, and that a death costs only the batch of which the process died."""

import errno
from dataclasses import replace

import pytest

from closelook.jobs.cluster.attempts import Attempts
from closelook.jobs.plan.cells import make_plan
from closelook.jobs.products.record import NodeFailed
from closelook.jobs.products.relevance import RELEVANCE
from closelook.jobs.runner.rows import compute_parts
from closelook.jobs.store import Store
from tests.jobs.computing import opened_for, part_of
from tests.jobs.small import config_of, prepared, rows_of
from tests.stages import attribute

ROWS = rows_of(8)


def test_commits_that_fail_in_run_after_run_make_no_row_a_reject(tmp_path, model, monkeypatch, inline):
    import closelook.jobs.store.files

    write = closelook.jobs.store.files._write_local

    def failing(target, data):
        if "/relevance/model=" in target:
            raise OSError(errno.EIO, "Input/output error")
        write(target, data)

    config = config_of(tmp_path / "root", model, max_attempts=2)
    store = prepared(config, ROWS)
    for _ in range(6):
        with monkeypatch.context() as patch:
            patch.setattr(closelook.jobs.store.files, "_write_local", failing)
            assert "Input/output error" in attribute(config, store).failures[0]
    assert attribute(config, store).complete
    for planned in make_plan(config, store).cells():
        assert store.manifest(planned.artifact.name)["rejects"] == {}


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
