"""The benchmark compares two ways to the same numbers."""

import json

import numpy as np
import pytest

from benchmarks import metrics
from evaluation.schema import BENCH
from evaluation.scoring.metrics import score
from jobs.store import Store


def test_the_loop_gives_the_numbers_of_scoring_at_once():
    drawn = metrics.made_up(4, 20, 50)
    scores = score(*drawn).values
    for name, values in metrics.loop(*drawn).items():
        np.testing.assert_allclose(scores[name], values, rtol=1e-5)


@pytest.mark.nightly
def test_the_command_measures_every_task_and_keeps_its_results_where_it_is_told(closelook, tmp_path):
    root, file = tmp_path / "root", tmp_path / "metrics.json"
    code, out, _ = closelook("bench", "metrics", "--quick", "--root", str(root), "--json", str(file))
    assert code == 0
    for text in ("tokens/s at once / loop", "small shapes (--quick)", f"added to {root}/bench/metrics/"):
        assert text in out
    assert "MISSED" not in out
    written = json.loads(file.read_text())
    assert written["command"] == "closelook bench metrics --quick"
    *speeds, memory = written["ratios"]
    assert speeds == [f"{task}: tokens/s at once / loop" for task in ("ra", "sva", "qa")]
    assert memory == "10000000 samples of a cell: GiB of the worker that scores it"
    assert [row["rows"] for row in written["rows"] if row.get("what") == "many rows"] == [500, 2000]
    table = Store(str(root)).read("bench/metrics", BENCH)
    rates = table.filter([measure == "tokens_per_s" for measure in table["measure"].to_pylist()]).to_pylist()
    assert {(row["task"], row["method"], row["unit"]) for row in rates} == {
        (row["task"], row["scoring"], "1/s") for row in written["rows"] if "scoring" in row
    }
    assert all(row["value"] > 0 for row in rates)
