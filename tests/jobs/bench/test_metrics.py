"""The benchmark of scoring runs through the command, and keeps its results where it is told."""

import json

import pytest

from closelook.evaluation.schema import BENCH
from closelook.jobs.store import Store


@pytest.mark.nightly
def test_the_command_measures_every_task_and_keeps_its_results_where_it_is_told(closelook, tmp_path):
    root, file = tmp_path / "root", tmp_path / "metrics.json"
    code, out, _ = closelook("bench", "metrics", "--quick", "--root", str(root), "--json", str(file))
    assert code == 0
    for text in ("task qa, samples 500, tokens_per_s", "small shapes (--quick)", f"added to {root}/bench/metrics/"):
        assert text in out
    assert "MISSED" not in out
    written = json.loads(file.read_text())
    assert written["command"] == "closelook bench metrics --quick"
    assert list(written["ratios"]) == ["10000000 samples of a cell: GiB of the worker that scores it"]
    assert [row["rows"] for row in written["rows"] if row.get("what") == "many rows"] == [500, 2000]
    table = Store(str(root)).read("bench/metrics", BENCH)
    rates = table.filter([measure == "tokens_per_s" for measure in table["measure"].to_pylist()]).to_pylist()
    assert {(row["task"], row["unit"]) for row in rates} == {(task, "1/s") for task in ("ra", "sva", "qa")}
    assert all(row["value"] > 0 for row in rates)
