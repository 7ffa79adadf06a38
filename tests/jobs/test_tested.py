"""The tests between methods that a run carries are those of its report."""

import numpy as np
import pandas as pd
import pytest

import closelook
from closelook.evaluation.scoring.metrics import METRICS, lead
from closelook.jobs.config import RunConfig
from closelook.jobs.config.kept import keeping
from closelook.jobs.stages.run import run as run_stages
from closelook.jobs.store import Store
from tests.jobs.inline import without_ray
from tests.shown import numbers_of
from tests.synthetic import write_run

METHODS = ["attnlrp", "gradient_x_input", "random"]
STAGES = ("prepare", "attribute", "evaluate", "perturb", "report")


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    """A run of three methods on 20 samples of the demo."""
    keys = {
        "name": "compared",
        "device": "cpu",
        "tasks": {"sva": {"source": "demo", "limit": 20}},
        "models": [{"name": "gpt2", "id": "demo/gpt2"}],
        "methods": METHODS,
        "perturb": {"measures": ["areas"]},
        "report": {"resamples": 200},
    }
    config = RunConfig.load(keys, str(tmp_path_factory.mktemp("compared")))
    store = Store(config.root)
    with without_ray(), keeping(config, store):
        assert all(summary.complete for summary in run_stages(config, store, STAGES))
    return closelook.load(config.root)


def test_means_and_groups_are_those_of_the_report(compared):
    means = compared.means()[compared.means()["metric"] == lead()].set_index("method")
    assert set(means.index) == set(METHODS)
    assert (means["low"] <= means["value"]).all()
    assert (means["value"] <= means["high"]).all()
    shown = numbers_of(compared.store, "leaderboard")
    labels = {closelook.METHODS[name].label: name for name in METHODS}
    groups = {labels[row["method"]]: int(float(row["value"])) for row in shown if row["label"] == "group"}
    assert groups == means["group"].to_dict()
    by_group = compared.groups()[compared.groups()["metric"] == lead()]
    assert {name: row.group for row in by_group.itertuples() for name in row.methods} == groups


def test_differences_are_of_the_samples_that_all_methods_have(compared):
    samples = compared.scores_of_samples()
    kept = (samples["tokens"] == "non_special") & samples["correct"] & (samples["explanation"] == "contrastive")
    values = samples[kept & (samples["embedding"] == "full")].pivot(index="sample_id", columns="method", values="pg")
    pair = compared.differences()
    pair = pair[(pair["metric"] == "pg") & (pair["method"] == "attnlrp") & (pair["other"] == "gradient_x_input")]
    [row] = pair.itertuples()
    difference = 100 * (values["attnlrp"] - values["gradient_x_input"])
    assert row.difference == pytest.approx(difference.mean())
    assert row.low < row.difference < row.high
    assert row.n == len(values)
    rng = np.random.default_rng(5)  # the same test with signs of its own; Holm over three pairs: at most threefold
    signs = rng.choice([-1, 1], (20_000, len(difference)))
    alone = (abs(signs @ difference) >= abs(difference.sum()) - 1e-9).mean()
    assert 0.7 * alone <= row.p <= min(1, 4 * alone)


def test_curves_are_compared_too_by_way_and_explained_number(compared):
    areas = compared.means()[compared.means()["metric"] == "delta_area"]
    assert set(areas["way"]) == {"zero"}
    assert areas["explained"].str.len().min() > 0
    assert set(areas["method"]) == set(METHODS)
    assert (areas[areas["method"] == "random"]["value"].abs() < 1e-6).all()


def test_scores_of_a_run_have_the_ends_of_intervals_where_methods_are_compared(compared):
    scores = compared.scores()
    tested = scores[scores["low"].notna()]
    assert set(tested["method"]) == {"attnlrp", "gradient_x_input"}, "random is compared by its chance"
    assert set(tested["explanation"]) == {"contrastive"}
    assert set(tested["tokens"]) == {"non_special"}
    assert set(tested["metric"]) == {name for name in set(scores["metric"]) & set(METRICS) if METRICS[name].is_compared}
    joined = tested.merge(compared.means()[compared.means()["way"] == ""], on=["method", "metric"])
    for name in ("low", "high", "group"):
        assert (joined[f"{name}_x"] == joined[f"{name}_y"]).all()
    plain = compared.scores(tested=False)
    pd.testing.assert_frame_equal(plain, scores[plain.columns])


def test_scores_of_a_root_without_a_configuration_have_no_intervals(tmp_path):
    store = write_run(tmp_path / "run")
    store.delete("config.yaml")
    scores = closelook.load(str(tmp_path / "run")).scores()
    assert scores["low"].isna().all()
    with pytest.raises(closelook.UserError, match=r"has no config.yaml: run .* made with, to compare its methods"):
        closelook.load(str(tmp_path / "run")).differences()
