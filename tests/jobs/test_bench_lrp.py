"""The benchmark of gradient methods runs anywhere and says what it measured."""

import json
import subprocess
import sys

import pytest

from jobs.bench import lrp
from jobs.bench.harness import Bench, met, paired_ratio, summary, table


def test_quick_run_reports_every_ratio(tmp_path):
    result = lrp.main(["--quick", "--samples", "2", "--geometry", "gpt2", "--json", str(tmp_path / "lrp.json")])
    assert json.loads((tmp_path / "lrp.json").read_text()) == result
    assert result["bench"] == "lrp"
    assert {"torch", "transformers"} <= set(result["versions"])
    assert {row["part"] for row in result["rows"]} >= {"table_8", "sharing", "batching", "memory"}
    assert len(result["ratios"]) == 6
    for ratio in result["ratios"].values():
        assert ratio["better"] in ("lower", "higher")
        assert ratio["value"] > 0


def test_benchmark_needs_neither_ray_nor_the_command_line_tools():
    code = "import sys, jobs.bench.lrp; print(sorted({'ray', 'pydantic', 'typer', 'spacy'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_table_says_met_or_missed():
    bench = Bench("x", "cpu")
    bench.ratio("quick enough", 0.9, 1.0, "lower")
    bench.ratio("too slow", 1.0, 2.0, "higher")
    assert [met(ratio) for ratio in bench.ratios.values()] == [True, False]
    assert "MISSED" in table(bench.result()).splitlines()[-1]


def test_ratios_are_paired():
    assert paired_ratio([2.0, 20.0, 6.0], [1.0, 10.0, 3.0])["median"] == pytest.approx(2.0)
    assert summary([3.0])["q1"] == 3.0
