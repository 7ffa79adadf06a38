"""The ALTI benchmark runs, and measures what it promises."""

import json

from benchmarks import alti


def test_quick_bench_measures_every_promise(tmp_path):
    file = tmp_path / "alti.json"
    result = alti.main(["--quick", "--json", str(file), "--device", "cpu"])
    assert json.loads(file.read_text()) == result
    names = " ".join(result["ratios"])
    for promise in ("gpt2-xl float32, T=32: seconds", "GiB", "worst error", "globenc"):
        assert promise in names
    assert {row["part"] for row in result["rows"]} == {"whole model", "planner", "globenc"}
