"""The chaos benchmark: what it disturbs, what it takes for false, and a minute of it."""

import ast
import json
import math
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks.parts.chaos import driver
from benchmarks.parts.chaos.faults import NotNow, ask_to_stop
from benchmarks.parts.chaos.products import ROUNDING_BY_ROW, compared, rounding
from benchmarks.parts.chaos.world import World
from benchmarks.parts.stores.object_store import ObjectStore, object_store
from closelook.jobs.store import Artifact, Ledger, Store
from closelook.jobs.store.retry import StillUnavailable
from tests.jobs.small import REPOSITORY
from tests.patience import PATIENCE_S

SEED = 3
CELL = Artifact("relevance", "m", "sva", "float32", "lrp", key="0123456789abcdef")
SCORED = Artifact("scores", "m", "sva", "float32", "lrp", key="fedcba")
RELEVANCE, SCORES = f"{CELL.folder}/{CELL.shard()}", f"{SCORED.folder}/{SCORED.shard()}"
TABLE = "report/tables/table1.csv"


def test_the_clock_steps_wherever_a_run_asks_what_time_it_is():
    asking = set()
    for path in (REPOSITORY / "jobs").rglob("*.py"):
        calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Attribute)]
        if any(ast.unparse(node) in ("time.time", "time.time_ns", "time.gmtime") for node in calls):
            asking.add(".".join(path.relative_to(REPOSITORY).with_suffix("").parts))
    elsewhere = {"closelook.jobs.commands.roots.gc", "closelook.jobs.bench.record"}  # no part of a run under chaos
    assert set(driver.CLOCKED) == asking - elsewhere


def test_the_stepped_clock_is_off_by_what_its_file_says_and_the_machines_is_not(tmp_path):
    clock = driver.SteppedClock(tmp_path / "clock")
    assert abs(clock.time() - time.time()) < 5
    (tmp_path / "clock").write_text("-86400")
    assert abs(clock.time() + 86_400 - time.time()) < 5
    assert abs(clock.time_ns() / 1e9 + 86_400 - time.time()) < 5
    assert clock.gmtime()[:3] == time.gmtime(time.time() - 86_400)[:3]
    assert clock.gmtime(0) == time.gmtime(0)
    assert abs(clock.monotonic() - time.monotonic()) < 5


def test_requests_are_refused_and_listings_are_of_some_time_ago(monkeypatch):
    with object_store() as server:
        store = Store(server.root("root"))
        store.write_bytes("folder/a.json", b"1")
        assert store.files("folder", ".json") == ["folder/a.json"]
        server.lists_old = True
        store.write_bytes("folder/b.json", b"2")
        assert store.files("folder", ".json") == ["folder/a.json"], "as it was"
        assert store.read_bytes("folder/b.json") == b"2", "and yet it is there"
        server.calm()
        assert store.files("folder", ".json") == ["folder/a.json", "folder/b.json"]
        server.failing_share = 1.0
        monkeypatch.setattr("closelook.jobs.store.retry.retried.__defaults__", (0.0,))
        with pytest.raises(StillUnavailable):
            store.read_bytes("folder/b.json")
        assert server.turned_away > 0


def root_of(folder: Path, name: str, **changes: bytes) -> Store:
    """A root with scores that are made of relevance, a table that is made of scores, and times."""
    store = Store(str(folder / name))
    files = {RELEVANCE: b"a", SCORES: b"b", TABLE: b"c", "report/tables/runtime.csv": name.encode()}
    files |= {"runtime/model=m/d.parquet": name.encode()}
    for path, data in (files | changes).items():
        store.write_bytes(path, data)
    ledger = Ledger(store)
    ledger.commit(CELL, {"shards": [CELL.shard()], "rejects": {}})
    ledger.commit(SCORED, {"rejects": {}}, made_of=[CELL])
    ledger.commit(Artifact("report"), {"shards": ["tables/table1.csv", "tables/runtime.csv"]})
    return store


def test_what_differs_is_false_unless_its_manifest_or_that_of_its_source_says_why(tmp_path):
    expected = root_of(tmp_path, "undisturbed")
    assert compared(expected, root_of(tmp_path, "same")).equal == 3, "times are no product"
    changed = root_of(tmp_path, "changed", **{RELEVANCE: b"A", SCORES: b"B", TABLE: b"C"})
    assert list(compared(expected, changed).false) == [RELEVANCE, SCORES, TABLE]
    record = changed.manifest(CELL.name) | {"rejects": {"ended_worker": 1}}
    changed.write_manifest(CELL.name, record)
    assert compared(expected, changed).named == [RELEVANCE, SCORES, TABLE]
    changed.delete(SCORES)
    assert compared(expected, changed).lost == [SCORES]
    changed.write_manifest(CELL.name, record | {"state": "partial"})
    assert compared(expected, changed).lost == [RELEVANCE, SCORES]
    for path in changed.files("manifest", ".json"):
        changed.write_bytes(path, b"{")
    assert len(compared(expected, changed).lost) == 3, "nothing says that they are there"


def parquet(values: list, samples: str = "ab") -> bytes:
    """A file of relevance, a list for each sample."""
    sink = pa.BufferOutputStream()
    relevance = pa.array(values, pa.list_(pa.float32()))
    pq.write_table(pa.table({"sample_id": list(samples)[: len(values)], "relevance": relevance}), sink)
    return sink.getvalue().to_pybytes()


@pytest.mark.parametrize(
    ("other", "is_equal"),
    [
        ([[1.0, 2.00001], [3.0]], True),
        ([[1.0, 2.01], [3.0]], False),
        ([[1.0, 2.0, 3.0], []], False),
        ([[1.0, 2.0]], False),
        ([[1.0, None], [3.0]], False),
    ],
)
def test_numbers_may_differ_by_rounding_and_nothing_else_may(other, is_equal):
    assert (rounding(parquet([[1.0, 2.0], [3.0]]), parquet(other), "a.parquet") <= ROUNDING_BY_ROW) == is_equal


def test_rows_may_be_in_another_order_where_batches_were_computed_row_by_row():
    expected, other = parquet([[1.0], [2.0]]), parquet([[2.0], [1.0]], samples="ba")
    assert rounding(expected, other, "a.parquet") == math.inf
    assert rounding(expected, other, "a.parquet", in_any_order=True) == 0
    assert rounding(expected, parquet([[2.0], [1.0]]), "a.parquet", in_any_order=True) > ROUNDING_BY_ROW


@pytest.mark.parametrize(("cell", "is_equal"), [("2.00001", True), ("2.1", False), ("two", False), ("2.0,3", False)])
def test_printed_numbers_may_differ_by_rounding(cell, is_equal):
    difference = rounding(b"method,PG\nlrp,2.0\n", f"method,PG\nlrp,{cell}\n".encode(), "a.csv")
    assert (difference <= ROUNDING_BY_ROW) == is_equal


def test_rounding_is_told_relative_to_the_largest_number_of_a_file():
    assert rounding(parquet([[1.0, 2.0], [4.0]]), parquet([[1.5, 2.0], [4.0]]), "a.parquet") == 0.125
    assert rounding(parquet([[1.0, 2.0], [4.0]]), parquet([[1.0, float("nan")], [4.0]]), "a.parquet") == math.inf


def test_numbers_differ_by_rounding_and_by_more_of_it_where_a_batch_was_computed_row_by_row(tmp_path):
    expected = root_of(tmp_path, "undisturbed", **{RELEVANCE: parquet([[1.0]]), SCORES: parquet([[2.0]])})
    near = root_of(tmp_path, "near", **{RELEVANCE: parquet([[1.000001]]), SCORES: parquet([[2.0001]])})
    assert (list(compared(expected, near).rounded), list(compared(expected, near).false)) == ([RELEVANCE], [SCORES])
    record = near.manifest(CELL.name)
    near.write_manifest(CELL.name, record | {"fallbacks": {"batches_by_row": 0}})
    assert list(compared(expected, near).false) == [SCORES]
    near.write_manifest(CELL.name, record | {"fallbacks": {"batches_by_row": 1}})
    comparison = compared(expected, near)
    assert (comparison.false, comparison.equal, list(comparison.rounded)) == ({}, 1, [RELEVANCE, SCORES])
    assert 2e-5 < max(comparison.rounded.values()) < 1e-4
    near.write_bytes(SCORES, parquet([[2.01]]))
    assert list(compared(expected, near).false) == [SCORES], "more than rounding"


def test_a_worker_that_is_told_to_hangs_in_one_batch(tmp_path, monkeypatch):
    slept = []
    monkeypatch.setattr(driver.rows._Batches, "_attempt", lambda self, batch: batch)
    monkeypatch.setattr(driver, "time", SimpleNamespace(sleep=slept.append, time_ns=time.time_ns))
    driver.hang_once()
    assert [driver.rows._Batches._attempt(None, batch) for batch in (1, 2)] == [1, 2]
    assert slept == [driver.HANG_S]


@pytest.mark.nightly  # a process; runs are asked to stop by day without the benchmark
def test_a_run_is_asked_to_stop_by_the_command_that_users_have(tmp_path, monkeypatch):
    monkeypatch.setenv(driver.CHAOS, str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY / "src"))
    world = World(tmp_path, random.Random(0), ObjectStore(), is_disk_small=False, root=str(tmp_path / "root"))
    world.cluster = SimpleNamespace(address="127.0.0.1:1")
    with pytest.raises(NotNow):
        ask_to_stop(world)
    world.driver = SimpleNamespace()
    ask_to_stop(world)
    assert world.started[0].process.wait() == 2
    assert "there is no run in" in world.started[0].log.read_text()


@pytest.mark.nightly  # `.ci/run` runs it, too; `make test` has the faults one by one
@pytest.mark.ray
def test_a_minute_of_chaos_leaves_nothing_lost_or_false(tmp_path):
    """A process of its own, as it makes a mount and starts nodes."""
    command = [sys.executable, "-m", "benchmarks", "chaos", "--minutes", "1", "--seed", str(SEED)]
    command += ["--json", str(tmp_path / "chaos.json")]
    run = subprocess.Popen(
        command, cwd=REPOSITORY, start_new_session=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        out, _ = run.communicate(timeout=PATIENCE_S)
    finally:
        if run.poll() is None:
            os.killpg(run.pid, signal.SIGKILL)
    assert run.returncode == 0, out
    result = json.loads((tmp_path / "chaos.json").read_text())
    assert sum(row["times"] for row in result["rows"] if row["what"] == "fault") >= 5, out
    assert {ratio["value"] for ratio in result["ratios"].values()} == {0}, out
    (last,) = [row for row in result["rows"] if row["what"] == "run"]
    assert last["files"] > 40
