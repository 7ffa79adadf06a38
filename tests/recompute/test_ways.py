"""Numbers of a report on several ways in which tokens go, resampled ones among them, recomputed from what is stored."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from closelook.jobs.config import RunConfig
from closelook.jobs.config.kept import keeping
from closelook.jobs.stages.run import run
from closelook.jobs.store import Store
from tests.jobs.inline import without_ray
from tests.recompute.__main__ import main, recompute
from tests.recompute.stored import Root
from tests.recompute.test_recompute import changed

pytestmark = pytest.mark.nightly  # minutes, of what tests/recompute/test_recompute.py does for one way

SETTINGS = [
    "tasks={sva: {source: demo, limit: 6}, sentiment: {source: demo, limit: 5}}",
    "models=[{name: gpt2, id: demo/gpt2, tasks: [sva]}, {name: bert-sentiment, id: demo/bert-sentiment}]",
    "methods=[attnlrp, lrp, gradient_l2, attention_rollout, random]",
    "perturb={ways: [zero, delete, resample], explanations: [target, contrastive], draws: 2}",
]


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("ways")
    config, store = RunConfig.load("smoke", root=str(folder), overrides=SETTINGS), Store(str(folder))
    with without_ray(), keeping(config, store):
        for summary in run(config, store):
            assert not summary.failures, summary
    return folder


def test_every_number_of_several_ways_is_that_of_an_independent_recomputation(root: Path) -> None:
    results = recompute(root)
    assert [line for compared in results.values() for line in compared.differences] == []
    for name in ("faithfulness_ways", "shares", "figures/faithfulness_sva_resample"):
        assert results[name].recomputed > 30 > results[name].left, name
    rows = Root(root).numbers("faithfulness_ways")
    ways = {"zeroed, deleted", "zeroed, resampled", "deleted, resampled"}
    assert {(row["model"], row["ways"]) for row in rows} == {
        (model, both) for model in ("gpt2", "gpt2, target − foil") for both in ways
    }
    assert {row["value"] for row in rows if row["label"] == "methods"} == {"4"}, "but for random"
    assert {row["value"] for row in rows if row["label"] == "samples"} == {"6"}


def test_one_changed_curve_of_one_way_is_noticed_in_the_table_of_ways(root: Path, tmp_path: Path, capsys) -> None:
    copy = tmp_path / "root"
    shutil.copytree(root, copy)
    table = "faithfulness_ways"
    assert main([str(copy), "--only", table]) == 0
    folder = copy / "curves/model=gpt2/task=sva/dtype=float32/method=gradient_l2"
    of = {"perturbation": "resample", "order": "lerf", "explanation": "target"}
    for _ in range(200):  # until the method is the most faithful of all
        changed(sorted(folder.glob("*.parquet"))[0], "logit", of)
    assert main([str(copy), "--only", table]) == 1
    assert "resampled" in capsys.readouterr().out
