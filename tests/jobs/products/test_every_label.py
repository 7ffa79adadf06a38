"""Relevance for every label of classifiers: kept beside that of the predicted one, shown, and planned."""

import numpy as np
import pytest

from closelook.evaluation.report.heatmaps.tokens import EVERY_LABEL
from closelook.evaluation.schema import LABELS, RELEVANCE, SCORES
from closelook.jobs.config.file import ConfigError
from closelook.jobs.plan.cells import make_plan
from closelook.jobs.stages.prepare import prepare
from closelook.jobs.stages.report import report
from closelook.jobs.store import Ledger, Store
from tests.jobs.inline import without_ray
from tests.jobs.labelled import SST2, STS, run_of, save
from tests.leaves import first_leaf
from tests.stages import attribute, evaluate

NAMES = ("NEGATIVE", "Positive")
KEPT = 3  # of five samples


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("labels")
    (root / "sst2.tsv").write_text("sentence\tlabel\n" + "".join(f"{text}\t{label}\n" for text, label in SST2))
    (root / "sts.csv").write_text("".join(f"{first},{second},{score}\n" for first, second, score in STS))
    save(root / "sentiment", labels=NAMES)
    save(root / "score", labels=("score",))
    return root


@pytest.fixture(scope="module")
def done(folders, tmp_path_factory):
    """A run that keeps every label of some samples: (config, plan, store)."""
    methods, root = ["lrp", "normxlogit", "random"], tmp_path_factory.mktemp("root")
    config = run_of(folders, root, methods=methods, labels={"sst2": KEPT}, perturb=None)
    store = Store(config.root)
    store.create()
    with without_ray():
        for stage in (prepare, attribute, evaluate, report):
            assert not stage(config, store).failures
    return config, make_plan(config, store), store


def rows_of(done, product, schema, method):
    _, plan, store = done
    [cell] = [
        p.artifact
        for p in plan.cells()
        if (p.artifact.product, p.artifact.task, p.artifact.method) == (product, "sst2", method)
    ]
    return Ledger(store).read(cell, schema).to_pylist()


def test_methods_that_explain_a_label_have_a_row_for_each(done):
    _, plan, _ = done
    cells = [planned.artifact for planned in plan.cells() if planned.artifact.product == "labels"]
    assert {(cell.model, cell.task, cell.method) for cell in cells} == {
        ("sentiment", "sst2", "lrp"),
        ("sentiment", "sst2", "normxlogit"),
    }
    for method in ("lrp", "normxlogit"):
        predicted = {row["sample_id"]: row for row in rows_of(done, "relevance", RELEVANCE, method)}
        rows = rows_of(done, "labels", LABELS, method)
        assert len(rows) == KEPT * len(NAMES)
        assert {row["label_id"] for row in rows} == set(range(len(NAMES)))
        for row in rows:
            of_target = predicted[row["sample_id"]]
            assert row["predicted_id"] == of_target["predicted_id"]
            same = row["label_id"] == row["predicted_id"]
            assert row["explained"] == pytest.approx(of_target["logit_target" if same else "logit_foil"], abs=1e-5)
            assert np.allclose(row["relevance"], of_target["relevance"], atol=1e-5) == same
            assert (row["residual"] is None) == (method == "normxlogit")


def test_scores_are_those_of_the_predicted_label_alone(done):
    _, plan, store = done
    methods = {planned.artifact.method for planned in plan.cells() if planned.artifact.product == "relevance"}
    assert methods == {"lrp", "normxlogit", "random"}
    for method in methods:
        rows = store.read(f"scores/sentiment.sst2.float32.{method}.parquet", SCORES).to_pylist()
        assert {row["explanation"] for row in rows} <= {"target", "none"}


def test_the_explorer_shows_a_row_a_label_of_the_samples_that_have_them(done):
    _, _, store = done
    entries = first_leaf(store.read_bytes("report/samples.html").decode(), "samples")
    shown = [entry for entry in entries if entry["task"] == "sst2"]
    kept = {row["sample_id"] for row in rows_of(done, "labels", LABELS, "lrp")}
    assert len(shown) == 2, "the report shows two samples of each task"
    for entry in shown:
        assert entry["sample_id"] in kept, "these are chosen first"
        of_labels = [(row["label"], row["of"]) for row in entry["rows"] if row["explanation"] == EVERY_LABEL]
        assert of_labels == [(method, name) for method in ("LRP", "NormXLogit") for name in NAMES]
    assert all("of" not in row for entry in entries for row in entry["rows"] if row["explanation"] != EVERY_LABEL)


def test_a_task_without_labels_is_an_error_in_one_line(folders, tmp_path):
    with pytest.raises(ConfigError, match=r"config key 'labels.stsb': task 'stsb' predicts no labels"):
        run_of(folders, tmp_path, labels={"stsb": None})
    with pytest.raises(ConfigError, match="labels: no task 'sst'"):
        run_of(folders, tmp_path, labels={"sst": None})
