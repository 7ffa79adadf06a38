"""The benchmark of the job runs through, and what it reports is what it measured."""

import json
from types import SimpleNamespace

import pytest

from jobs.bench import job
from jobs.bench.job import Timed
from jobs.store import Store
from tests.jobs.forked import FORKS


@pytest.mark.ray
def test_the_quick_benchmark_reports_overhead_scaling_cost_and_schedule(tmp_path, local_ray, monkeypatch):
    monkeypatch.setattr(job, "multiprocessing", SimpleNamespace(get_context=lambda method: FORKS))
    result = job.main(["--quick", "--json", str(tmp_path / "job.json")])
    assert json.loads((tmp_path / "job.json").read_text())["ratios"] == result["ratios"]
    rows = result["rows"]
    whole = {row["what"]: row["seconds"]["median"] for row in rows if "steady_seconds" in row}
    overhead = result["ratios"]["gpt2: ray over bare loop, whole run"]
    assert overhead["value"] == pytest.approx(whole["ray, one worker"] / whole["bare loop"], abs=1e-4)
    costs = {(row["geometry"], row["task"], row["method"]) for row in rows if row["what"] == "cost"}
    assert {task for _, task, _ in costs} == {"ra", "sva", "qa"}
    assert {("gpt2", "qa", "alti"), ("bert-base", "qa", "explicit"), ("gpt2", "ra", "all")} <= costs
    simulated = [row["nodes"] for row in rows if row["what"] == "simulation"]
    assert simulated[:2] == ["8 GPUs", "64 GPUs"]
    assert len(simulated) == 4


def test_a_run_that_rejected_rows_is_no_measurement(tmp_path):
    store = Store(str(tmp_path))
    store.write_bytes("relevance/rejects/model=a/0.parquet", b"")
    with pytest.raises(RuntimeError, match="rejected rows"):
        Timed.of(1.0, store)
