"""The ALTI benchmark runs, and what it compares with computes the same relevance."""

import json

import torch

from alti import alti_logit
from benchmarks import alti
from benchmarks.parts.alti_baselines import materialising
from lrp_core import Batch
from tests.tiny import ragged_rows, tiny_model


def test_the_baseline_that_materialises_everything_gives_the_same_relevance():
    view = tiny_model("gpt2")
    batch = Batch.collate(ragged_rows(view, lengths=(9,)), 0)
    ours = alti_logit(view, batch)
    attention = ours.tokens[0].clone()
    attention[batch.position[0]] -= ours.contributions.initial[0]
    torch.testing.assert_close(materialising(view, batch), attention, rtol=0, atol=1e-10)


def test_quick_bench_measures_every_promise(tmp_path):
    file = tmp_path / "alti.json"
    result = alti.main(["--quick", "--json", str(file), "--device", "cpu"])
    assert json.loads(file.read_text()) == result
    names = " ".join(result["ratios"])
    for promise in ("materialising / ours", "gpt2-xl layer", "Llama-3.1-8B layer", "seconds", "GiB", "worst error"):
        assert promise in names
    assert {row["part"] for row in result["rows"]} == {
        "materialising",
        "layer",
        "whole model",
        "planner",
        "prediction for a GPU",
    }
