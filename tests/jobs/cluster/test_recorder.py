"""Records of the work of workers: lines under the root, without any secret."""

import json
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

from closelook.jobs.cluster import recorder as module
from closelook.jobs.cluster.recorder import Recorder
from closelook.jobs.cluster.reports import Report, reported
from closelook.jobs.products.explaining import Explainer
from closelook.jobs.runner import driver as stage
from closelook.jobs.runner.worker import Worker
from tests.jobs.small import config_of, prepared, rows_of
from tests.stages import attribute

SECRET = 'hunter2-"never"-to-be-seen'


def lines_of(store):
    paths = store.files("logs", ".jsonl", recursive=True)
    return [json.loads(line) for path in paths for line in store.read_bytes(path).decode().splitlines()]


def report_of(**changes):
    return Report(**{"unit": "u", "worker": "node/1", **changes})


def test_a_stage_leaves_a_line_for_every_unit(tmp_path, model, inline, monkeypatch):
    """The stage itself, in this process; its second unit fails, and a row of another."""

    class Failing(Worker):
        units, bad = 0, ""

        def _run(self, task, rows):
            Failing.units, Failing.bad = Failing.units + 1, Failing.bad or rows[0]["sample_id"]
            if Failing.units == 2:
                raise RuntimeError(f"no route to {SECRET}")
            return super()._run(task, rows)

    whole = Explainer.batch

    def batch(explainer, rows):
        if any(row["sample_id"] == Failing.bad for row in rows):
            raise ValueError(f"no token {SECRET}")
        return whole(explainer, rows)

    monkeypatch.setenv("HF_TOKEN", SECRET)
    monkeypatch.setattr(Explainer, "batch", batch)
    monkeypatch.setattr(stage, "Worker", Failing)
    config = config_of(tmp_path / "root", model)
    store = prepared(config, rows_of(24))
    summary = attribute(config, store)
    assert not summary.complete
    lines = lines_of(store)
    begun, *units, ended = lines
    assert [line["event"] for line in lines] == ["begin", *["unit"] * len(units), "end"]
    assert (begun["model"], begun["units"], begun["stage"]) == (model.name, len(units), "attribute")
    assert sum(line["rows"] for line in units) == 24
    for line in units:
        assert {"unit", "tokens", "rejects", "splits", "worker"} <= set(line)
    assert units[0]["wall_s"] > 0
    assert [bool(line["error"]) for line in units] == [index == 1 for index in range(len(units))]
    assert units[1]["error"] in ended["errors"]
    assert "[HF_TOKEN]" in units[1]["error"]
    assert sum(line["rejects"] for line in units) == 1
    kept = [path.read_bytes().decode(errors="replace") for path in tmp_path.rglob("*") if path.is_file()]
    assert any("no token [HF_TOKEN]" in text for text in kept), "a manifest and its shards say so"
    assert not any(secret in text for text in kept for secret in (SECRET, json.dumps(SECRET)[1:-1]))


def test_units_cost_no_request_of_their_own(store, monkeypatch):
    written = []
    monkeypatch.setattr(store, "write_bytes", lambda path, data: written.append(path))
    now = [1000.0]
    monkeypatch.setattr(module, "time", SimpleNamespace(**vars(time) | {"monotonic": lambda: now[0]}))
    with Recorder(store, "attribute") as recorder:
        for _ in range(1000):
            now[0] += 0.3  # five minutes in all
            recorder.unit("gpt2 float64", "gpt2", report_of(rows=2, tokens=7))
    assert len(written) == len(set(written)) == 3


def test_lines_of_many_threads_are_all_kept(store):
    with Recorder(store, "attribute") as recorder, ThreadPoolExecutor(4) as threads:
        for model in "abcd":
            for index in range(200):
                threads.submit(recorder.unit, model, model, report_of(unit=f"{model}{index}", rows=1))
    assert len({line["unit"] for line in lines_of(store)}) == 800


def test_a_log_that_cannot_be_written_ends_nothing(store, monkeypatch):
    def full(path, data):
        raise OSError("no space left")

    monkeypatch.setattr(store, "write_bytes", full)
    with Recorder(store, "attribute") as recorder:
        recorder.end("gpt2", ["no space left"])
    assert lines_of(store) == []


def test_secrets_are_in_no_line_and_no_report(store, monkeypatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)

    def refuse():
        raise RuntimeError(f"denied to {SECRET}")

    assert reported(Report("u"), refuse).error == "u: RuntimeError: denied to [AWS_SECRET_ACCESS_KEY]"
    with Recorder(store, "attribute") as recorder:
        recorder.unit("gpt2", "gpt2", report_of(error=f"denied to {SECRET}"))
        recorder.end("gpt2", [f"denied to {SECRET}"])
    unit, end = lines_of(store)
    assert unit["error"] == end["errors"][0] == "denied to [AWS_SECRET_ACCESS_KEY]"
