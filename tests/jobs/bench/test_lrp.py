"""The benchmark of gradient methods runs anywhere and says what it measured."""

import json
import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from benchmarks import lrp
from benchmarks.lrp import Counting
from benchmarks.parts.harness import Bench, table
from closelook.jobs.bench.record import met, paired_ratio, summary
from closelook.jobs.geometries import GEOMETRIES
from closelook.lrp_core import random_model
from closelook.lrp_core.rules.linear import gamma_rule


def test_quick_run_reports_every_ratio(tmp_path):
    result = lrp.main(["--quick", "--samples", "2", "--geometry", "gpt2", "--json", str(tmp_path / "lrp.json")])
    assert json.loads((tmp_path / "lrp.json").read_text()) == result
    assert result["bench"] == "lrp"
    assert {"torch", "transformers"} <= set(result["versions"])
    assert {row["part"] for row in result["rows"]} >= {"table_8", "work", "sharing", "batching", "memory"}
    assert len(result["ratios"]) == 6
    assert all(name.startswith("gpt2 shrunk: ") for name in result["ratios"]), "nobody takes them for gpt2's"
    for ratio in result["ratios"].values():
        assert ratio["better"] in ("lower", "higher")
        assert ratio["value"] > 0


def test_a_vision_transformer_is_measured_under_composites_to_its_pixels():
    result = lrp.main(["--quick", "--samples", "2", "--geometry", "vit-base-patch16-224"])
    assert [row["composite"] for row in result["rows"]] == ["plain", "epsilon", "vit"]
    assert all(row["cpu_backward_ms"]["n"] == 2 for row in result["rows"])
    ratio = result["ratios"]["vit-base-patch16-224 shrunk: composite vit: backward / plain"]
    assert (ratio["target"], ratio["better"]) == (2.5, "lower")


@pytest.mark.nightly
def test_benchmark_runs_without_ray_the_command_line_tools_and_parquet():
    run = "import sys, benchmarks.lrp; benchmarks.lrp.main(['--quick', '--samples', '1', '--geometry', 'gpt2'])"
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


def test_work_is_what_a_pass_computes_reads_and_writes():
    x, weight = torch.ones(3, 4), torch.ones(4, 5, requires_grad=True)
    y = (x @ weight).sum()
    with Counting() as counting:
        torch.autograd.grad(y, weight)
    assert counting.work.product_bytes == 4 * (3 * 4 + 3 * 5 + 4 * 5)
    ones_like, product = 4 + 4, counting.work.product_bytes
    assert counting.work.moved_bytes == ones_like + product
    assert counting.work.operations == 2


@pytest.mark.parametrize(("geometry", "most"), [("bert-base", 1.02), ("gpt2", 1.0), ("Llama-3.2-1B", 1.0)])
def test_the_rules_move_hardly_more_bytes_than_the_plain_gradient(geometry, most):
    """At the width of the geometry, where weights dominate; time on a busy machine would not be as clear."""
    config = replace(GEOMETRIES[geometry], layers=1, vocabulary=128).config()
    view = random_model(config)
    bench = Bench("lrp", "cpu")
    lrp.work(bench, view, lrp.sva_like(view, 1)[0])
    work = {row["method"]: row for row in bench.rows}
    plain = work["gradient_x_input"]
    assert work["attnlrp"]["product_bytes"] == plain["product_bytes"]
    assert work["attnlrp"]["moved_bytes"] <= most * plain["moved_bytes"]
    assert work["lrp"]["moved_bytes"] < 0.95 * plain["moved_bytes"]


def test_gamma_takes_three_products_where_the_gradient_takes_one():
    dy, x, y, weight = torch.randn(5, 7), torch.randn(5, 6), torch.randn(5, 7), torch.randn(7, 6)
    with Counting() as counting:
        gamma_rule(0.25).backward(dy, x, y, weight, None)
    assert counting.work.product_bytes == 3 * 4 * (x.numel() + y.numel() + weight.numel())


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
