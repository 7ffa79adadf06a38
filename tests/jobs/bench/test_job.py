"""The benchmark of the job runs through, and what it reports is what it measured."""

import pickle

import pytest

from benchmarks import job
from benchmarks.harness import Bench
from closelook.jobs.store import Store


def in_this_process(function, *arguments):
    """Calls the function here, with arguments pickled as for a spawned process, whose start would take seconds."""
    function(*pickle.loads(pickle.dumps(arguments)))
    return 2**30, 0.5


@pytest.fixture
def bench(inline, monkeypatch):
    """A quick benchmark whose runs are all in this process."""
    monkeypatch.setattr(job, "in_own_process", in_this_process)
    monkeypatch.setattr(job, "connect", lambda config: None)
    begun = Bench("job", "cpu", quick=True)
    begun.chosen.repeats, begun.chosen.planned, begun.chosen.models = 1, 100, 2
    return begun


def test_overhead_is_the_time_by_ray_over_that_of_the_bare_loop(bench, tmp_path):
    job.overhead(bench, str(tmp_path))
    whole = {row["method"]: row["seconds"]["median"] for row in bench.rows if row["what"] == "whole run"}
    ratio = bench.ratios["ray over bare loop, whole run"]["value"]
    assert ratio == pytest.approx(whole["ray, one worker"] / whole["bare loop"], abs=1e-4)
    assert {"ray over bare loop, steady", "two workers over one, steady"} <= set(bench.ratios)


def test_requests_of_an_object_store_grow_at_most_as_samples_do_and_nothing_to_do_needs_few(bench, tmp_path, moto):
    job.requests(bench, str(tmp_path))
    few, many, nothing = [row["requests"] for row in bench.rows]
    assert nothing <= 20 < few < many <= 2 * few


def test_a_plan_has_all_rows_of_all_models(bench, tmp_path):
    job.plan(bench, str(tmp_path))
    assert bench.ratios["plan of 100 rows for 2 models: GiB"]["value"] == 1.0


def test_a_run_that_rejected_rows_is_no_measurement(tmp_path):
    store = Store(str(tmp_path))
    store.write_bytes("relevance/rejects/model=a/0.parquet", b"")
    with pytest.raises(RuntimeError, match="rejected rows"):
        job.steady_s(store)
