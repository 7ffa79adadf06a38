"""The benchmark compares two ways to the same numbers."""

import json

import numpy as np

from benchmarks import metrics
from evaluation.scoring.metrics import score


def test_the_loop_gives_the_numbers_of_scoring_at_once():
    drawn = metrics.made_up(4, 20, 50)
    scores = score(*drawn).values
    for name, values in metrics.loop(*drawn).items():
        np.testing.assert_allclose(scores[name], values, rtol=1e-5)


def test_it_runs_and_reports_the_ratio_of_every_task(tmp_path, capsys):
    metrics.main(["--quick", "--json", str(tmp_path / "metrics.json")])
    written = json.loads((tmp_path / "metrics.json").read_text())
    *speeds, memory = written["ratios"]
    assert speeds == [f"{task}: tokens/s at once / loop" for task in ("ra", "sva", "qa")]
    assert all(row["tokens_per_s"]["median"] > 0 for row in written["rows"] if "task" in row)
    assert memory == "10000000 samples of a cell: GiB of the worker that scores it"
    assert [row["rows"] for row in written["rows"] if row.get("what") == "many rows"] == [500, 2000]
    assert "tokens/s at once / loop" in capsys.readouterr().out
