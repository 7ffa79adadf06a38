"""The benchmark of gradient methods runs anywhere and says what it measured."""

import json
import subprocess
import sys

import pytest

from benchmarks import lrp
from benchmarks.harness import Bench, table
from closelook.jobs.bench.record import met, paired_ratio, summary


def test_quick_run_reports_every_ratio(tmp_path):
    result = lrp.main(["--quick", "--geometry", "bert-base", "--json", str(tmp_path / "lrp.json")])
    assert json.loads((tmp_path / "lrp.json").read_text()) == result
    assert {"bench", "device", "versions", "rows", "ratios"} <= set(result)
    assert {"torch", "transformers"} <= set(result["versions"])
    assert {row["part"] for row in result["rows"]} >= {"table_8", "memory", "sharing", "normxlogit"}
    assert len(result["ratios"]) == 6
    assert all(name.startswith("bert-base shrunk: ") for name in result["ratios"]), "nobody takes them for bert-base's"
    for ratio in result["ratios"].values():
        assert ratio["better"] in ("lower", "higher")
        assert ratio["value"] > 0
    of_table_4 = {row["method"]: row for row in result["rows"] if row["part"] == "table 4"}
    assert tuple(of_table_4) == lrp.TABLE_4
    assert of_table_4["normxlogit"]["peak_bytes"] < of_table_4["integrated_gradients"]["peak_bytes"]
    assert of_table_4["normxlogit"]["fit"] > of_table_4["decompx"]["fit"]


def test_a_vision_transformer_is_measured_under_composites_to_its_pixels():
    result = lrp.main(["--quick", "--geometry", "vit-base-patch16-224"])
    assert [row["method"] for row in result["rows"]] == ["plain", "epsilon", "vit"]
    ratio = result["ratios"]["vit-base-patch16-224 shrunk: composite vit: backward / plain"]
    assert (ratio["target"], ratio["better"]) == (2.5, "lower")


@pytest.mark.nightly
def test_benchmark_runs_without_ray_the_command_line_tools_and_parquet():
    run = "import sys, benchmarks.lrp; benchmarks.lrp.main(['--quick', '--parts', 'table_8', '--geometry', 'gpt2'])"
    code = f"{run}; print(sorted({{'ray', 'pydantic', 'typer', 'spacy', 'pyarrow'}} & set(sys.modules)))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.splitlines()[-1] == "[]"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--geometry", "gpt3"], "invalid choice: 'gpt3' (choose from"),
        (["--samples", "0"], "'0' is no positive whole number"),
        (["--lxt", "python"], "unrecognized arguments: --lxt python"),
    ],
)
def test_bad_options_are_one_line(arguments, message, capsys):
    with pytest.raises(SystemExit) as end:
        lrp.main(arguments)
    assert end.value.code == 2
    err = capsys.readouterr().err
    assert message in err
    assert len(err.splitlines()) == 1


def test_table_says_met_or_missed():
    bench = Bench("x", "cpu")
    bench.ratio("quick enough", 0.9, 1.0, "lower")
    bench.ratio("too slow", 1.0, 2.0, "higher")
    assert [met(ratio) for ratio in bench.ratios.values()] == [True, False]
    assert "MISSED" in table(bench.result()).splitlines()[-1]


def test_targets_of_small_shapes_are_not_judged():
    bench = Bench("x", "cpu", quick=True)
    bench.ratio("too slow", 1.0, 2.0, "higher")
    shown = table(bench.result())
    assert "small shapes (--quick)" in shown
    assert "1.000" in shown.splitlines()[-1]
    assert not {"met", "MISSED", "2.00"} & set(shown.split())


def test_ratios_are_paired():
    assert paired_ratio([2.0, 20.0, 6.0], [1.0, 10.0, 3.0])["median"] == pytest.approx(2.0)
    assert summary([3.0])["q1"] == 3.0
