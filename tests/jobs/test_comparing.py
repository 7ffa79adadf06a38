"""`closelook.compare` and the tests that a run carries: those of the report, on data of any form."""

import json
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import closelook
from closelook.evaluation.scoring.metrics import METRICS, lead
from closelook.jobs import comparing
from closelook.jobs.store import Store
from tests.docs.test_blocks import PAGES, to_run
from tests.jobs.inline import without_ray
from tests.shown import numbers_of
from tests.synthetic import write_run

METHODS = ["attnlrp", "gradient_x_input", "random"]
ROWS = [
    {"text": "The keys to the cabinet ___ old.", "target": "are", "foil": "is", "evidence": "keys"},
    {"text": "The teachers that saw the girl ___ here.", "target": "are", "foil": "is", "evidence": "teachers"},
    {"text": "The key to the cabinets ___ old.", "target": "is", "foil": "are", "evidence": "key"},
]


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    """Three methods on 20 samples of the demo."""
    with without_ray():
        return closelook.compare(
            "demo/gpt2",
            methods=METHODS,
            limit=20,
            resamples=200,
            device="cpu",
            root=tmp_path_factory.mktemp("compared"),
        )


def test_means_and_groups_are_those_of_the_report(compared):
    means = compared.means[compared.means["metric"] == lead()].set_index("method")
    assert set(means.index) == set(METHODS)
    assert (means["low"] <= means["value"]).all()
    assert (means["value"] <= means["high"]).all()
    shown = numbers_of(compared.run.store, "leaderboard")
    labels = {closelook.METHODS[name].label: name for name in METHODS}
    groups = {labels[row["method"]]: int(float(row["value"])) for row in shown if row["label"] == "group"}
    assert groups == means["group"].to_dict()
    by_group = compared.groups[compared.groups["metric"] == lead()]
    assert {name: row.group for row in by_group.itertuples() for name in row.methods} == groups


def test_differences_are_of_the_samples_that_all_methods_have(compared):
    samples = compared.run.scores_of_samples()
    kept = (samples["tokens"] == "non_special") & samples["correct"] & (samples["explanation"] == "contrastive")
    values = samples[kept & (samples["embedding"] == "full")].pivot(index="sample_id", columns="method", values="pg")
    pair = compared.differences
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
    areas = compared.means[compared.means["metric"] == "delta_area"]
    assert set(areas["way"]) == {"zero"}
    assert areas["explained"].str.len().min() > 0
    assert set(areas["method"]) == set(METHODS)
    assert (areas[areas["method"] == "random"]["value"].abs() < 1e-6).all()


def test_scores_of_a_run_have_the_ends_of_intervals_where_methods_are_compared(compared):
    scores = compared.run.scores()
    tested = scores[scores["low"].notna()]
    assert set(tested["method"]) == {"attnlrp", "gradient_x_input"}, "random is compared by its chance"
    assert set(tested["explanation"]) == {"contrastive"}
    assert set(tested["tokens"]) == {"non_special"}
    assert set(tested["metric"]) == {name for name in set(scores["metric"]) & set(METRICS) if METRICS[name].is_compared}
    joined = tested.merge(compared.means[compared.means["way"] == ""], on=["method", "metric"])
    for name in ("low", "high", "group"):
        assert (joined[f"{name}_x"] == joined[f"{name}_y"]).all()
    plain = compared.run.scores(tested=False)
    pd.testing.assert_frame_equal(plain, scores[plain.columns])


def test_scores_of_a_root_without_a_configuration_have_no_intervals(tmp_path):
    store = write_run(tmp_path / "run")
    store.delete("config.yaml")
    scores = closelook.load(str(tmp_path / "run")).scores()
    assert scores["low"].isna().all()
    with pytest.raises(closelook.UserError, match=r"has no config.yaml: run .* made with, to compare its methods"):
        closelook.load(str(tmp_path / "run")).differences()


def test_a_comparison_shows_groups_with_means_and_the_smallest_difference_told(compared):
    first, *lines = repr(compared).splitlines()
    assert first.startswith("<Comparison in ")
    assert len(lines) == 3
    assert re.search(r"gpt2 on sva, 20 samples, pg: 1\. attnlrp \d+\.\d.*\(differences from \d+\.\d are told", lines[0])
    assert "delta_area of" in lines[1]
    assert "<table" in compared._repr_html_()
    assert compared.report.endswith("report/index.html")


@pytest.mark.parametrize("form", ["rows", "frame", "file", "tasks"])
def test_data_are_rows_a_frame_a_file_or_tasks(form, inline, tmp_path, monkeypatch):
    monkeypatch.setattr(comparing, "STAGES", ("prepare", "attribute", "evaluate"))
    frame = pd.DataFrame(ROWS)
    frame.to_csv(tmp_path / "rows.csv", index=False)
    tasks = {"mine": {"source": "samples", "path": str(tmp_path / "rows.csv")}}
    data = {"rows": ROWS, "frame": frame, "file": tmp_path / "rows.csv", "tasks": tasks}[form]
    comparison = closelook.compare("demo/gpt2", data, "lrp", resamples=50, device="cpu", faithfulness=False)
    assert comparison.means["n"].max() == 3
    assert set(comparison.means["task"]) == {"mine" if form == "tasks" else "data"}


def test_texts_without_labels_or_evidence_are_compared_by_faithfulness(inline, monkeypatch):
    monkeypatch.setattr(comparing, "STAGES", ("prepare", "attribute", "evaluate", "perturb"))
    texts = ["The food was good", "The film was bad", "I like it"]
    comparison = closelook.compare("demo/bert-sentiment", texts, ["lrp", "random"], resamples=50, device="cpu")
    assert set(comparison.means["metric"]) == {"delta_area", "area_morf", "area_lerf"}
    assert comparison.means["n"].max() == 3


def test_a_frame_may_hold_arrays_times_and_missing_values(tmp_path):
    cells = {"evidence": np.array([4, 8]), "seen": pd.Timestamp("2020-01-02"), "score": 0.123456789012, "foil": None}
    frame = pd.DataFrame([{"text": 'The keys ___ "é/".', **cells}, {"text": "b", "foil": "is", "score": np.nan}])
    [first, second] = Path(comparing._written(frame, Store(str(tmp_path)))).read_text(encoding="utf-8").splitlines()
    assert json.loads(first) == {
        "text": 'The keys ___ "é/".', "evidence": [4, 8], "seen": "2020-01-02T00:00:00.000", "score": 0.123456789012
    }  # fmt: skip
    assert json.loads(second) == {"text": "b", "foil": "is"}


def test_rows_in_memory_may_hold_dates(tmp_path):
    rows = [ROWS[0] | {"seen": pd.Timestamp("2020-01-02")}]
    written = Path(comparing._written(rows, Store(str(tmp_path)))).read_text(encoding="utf-8")
    assert json.loads(written) == ROWS[0] | {"seen": "2020-01-02T00:00:00"}


def test_what_cannot_be_compared_is_one_line(inline, tmp_path):
    for data, message in (
        (3, "`data` is a file, a folder, a frame or a list of rows, not a int"),
        ([3], "a row of `data` is a text or a mapping of columns, not a int"),
        (tmp_path / "none.csv", "none.csv"),
    ):
        with pytest.raises(closelook.UserError, match=message):
            closelook.compare("demo/gpt2", data, "lrp")
    with pytest.raises(closelook.UserError, match="`model`: config key 'dtype': Input should be 'float16', 'bfloat16'"):
        closelook.compare("demo/gpt2", [{"text": "The keys"}], dtype="float23")
    with pytest.raises(closelook.UserError, match="unknown method 'lpr'"):
        closelook.compare("demo/gpt2", ROWS, "lpr")


def test_a_temporary_root_goes_with_the_result(inline, monkeypatch):
    monkeypatch.setattr(comparing, "STAGES", ("prepare", "attribute", "evaluate"))
    comparison = closelook.compare("demo/gpt2", ROWS, "lrp", resamples=50, device="cpu", faithfulness=False)
    root = comparing.Path(comparison.run.store.root)
    assert root.is_dir()
    del comparison
    assert not root.exists()


def test_notebooks_compare_as_their_page_says(inline, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    [code] = [block["code"] for block in to_run(PAGES["notebooks.md"]) if "closelook.compare(" in block["code"]]
    exec(compile(code, "notebooks.md", "exec"), {})
    out = capsys.readouterr().out
    assert "gpt2 on sva, 30 samples, pg: 1. " in out
    assert "gradient_x_input" in out
