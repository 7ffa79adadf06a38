"""The benchmark of the job runs through, and what it reports is what it measured."""

import json
import pickle
from itertools import product
from types import SimpleNamespace

import pytest

from benchmarks import job
from benchmarks.job import steady_s
from benchmarks.parts import harness
from benchmarks.parts.harness import Bench
from benchmarks.parts.stores import object_store
from benchmarks.parts.stores.object_store import SlowStore
from closelook.jobs.plan.cells import make_plan
from closelook.jobs.store import Ledger, Store
from tests.jobs.forked import FORKS
from tests.stages import missing_work


def in_this_process(function, *arguments):
    """Calls the function here, with arguments pickled as for a spawned process, whose start would take seconds."""
    function(*pickle.loads(pickle.dumps(arguments)))
    return 0, 0.0


@pytest.mark.nightly
def test_the_bare_loop_commits_all_units_in_a_process_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setattr(harness, "multiprocessing", SimpleNamespace(get_context=lambda method: FORKS))
    runs = job.Runs(tmp_path, quick=True)
    config = runs.config("gpt2", 1, {"ra": 4})
    store = runs.prepared(config)
    assert job.in_own_process(config, store) > 0
    (work,) = missing_work(config, Ledger(store), make_plan(config, store))
    assert work.groups
    assert not any(group.missing for group in work.groups)


@pytest.mark.nightly
@pytest.mark.ray
def test_the_quick_benchmark_reports_overhead_scaling_cost_and_schedule(tmp_path, local_ray, monkeypatch):
    monkeypatch.setattr(harness, "in_own_process", in_this_process)
    result = job.main(["--quick", "--json", str(tmp_path / "job.json")])
    assert json.loads((tmp_path / "job.json").read_text())["ratios"] == result["ratios"]
    rows = result["rows"]
    whole = {row["what"]: row["seconds"]["median"] for row in rows if "steady_seconds" in row}
    overhead = result["ratios"]["gpt2: ray over bare loop, whole run"]
    assert overhead["value"] == pytest.approx(whole["ray, one worker"] / whole["bare loop"], abs=1e-4)
    costs = {(row["geometry"], row["task"], row["method"]) for row in rows if row["what"] == "cost"}
    assert {task for _, task, _ in costs} == {"ra", "sva", "qa"}
    passes = {"alti", "all", "explicit", "gradients", "random", "rollout"}  # of the paper's methods, no others
    assert costs == set(product(("gpt2", "bert-base"), ("ra", "sva", "qa"), passes))
    simulated = [row["nodes"] for row in rows if row["what"] == "simulation"]
    assert simulated[:2] == ["8 GPUs", "64 GPUs"]
    assert len(simulated) == 3


def test_a_store_with_latency_is_measured_beside_the_others(tmp_path, inline, monkeypatch):
    """All ways in this process: what is told is the slow store's time over that of the bare loop on a quick one."""
    used = []

    def in_process(config, store):
        used.append(store)
        return job.by_ray(config, store)

    monkeypatch.setattr(job, "in_own_process", in_process)
    by_ray, timed = job.by_ray, []
    monkeypatch.setattr(job, "by_ray", lambda config, store: (timed.append(store), by_ray(config, store))[1])
    bench = Bench("job", "cpu")
    job.overhead(bench.about(geometry="gpt2"), job.Runs(tmp_path, quick=True), repeats=1, latency_s=0.002)
    assert [type(store) for store in timed] == [Store, Store, Store, SlowStore]
    assert used == timed[:1]
    result = bench.result()
    steady = {row["what"]: row["steady_seconds"]["median"] for row in result["rows"]}
    slow = "ray, one worker, 2 ms a request"
    assert list(steady) == ["bare loop", "ray, one worker", "ray, two workers", slow]
    ratio = result["ratios"][f"gpt2: {slow}, over bare loop, steady"]["value"]
    assert ratio == pytest.approx(steady[slow] / steady["bare loop"], abs=1e-4)


def test_every_request_of_a_slow_store_waits_also_in_another_process(tmp_path, monkeypatch):
    waits = []
    # Not all of `time`: a thread that an earlier test has left may sleep, too.
    monkeypatch.setattr(object_store, "time", SimpleNamespace(sleep=waits.append))
    store = pickle.loads(pickle.dumps(SlowStore(str(tmp_path), 0.025)))
    store.write_bytes("folder/file", b"text")
    assert store.read_bytes("folder/file") == b"text"
    assert store.files("folder", "file") == ["folder/file"]
    store.delete("folder/file")
    assert not store.exists("folder/file")
    assert waits == [0.025, 0.05, 0.025, 0.025, 0.025]


def test_a_run_that_rejected_rows_is_no_measurement(tmp_path):
    store = Store(str(tmp_path))
    store.write_bytes("relevance/rejects/model=a/0.parquet", b"")
    with pytest.raises(RuntimeError, match="rejected rows"):
        steady_s(store)
