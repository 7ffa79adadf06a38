"""Classifiers and regressors in a run: labels by name, the model's own prediction, shares of tokens taken away."""

from collections import defaultdict

import numpy as np
import pyarrow as pa
import pytest

from closelook.evaluation.schema import CURVES, PRUNING
from closelook.evaluation.scoring.faithfulness.shares import shares_of
from closelook.evaluation.scoring.intervals import Resampling
from closelook.jobs.plan.cells import make_plan, validate
from closelook.jobs.plan.node import Run
from closelook.jobs.products.curves import curves_of as curve_nodes
from closelook.jobs.products.pruning import pruning_of
from closelook.jobs.stages.prepare import prepare
from closelook.jobs.stages.report import report
from closelook.jobs.store import Ledger, Store
from closelook.lrp_core import METHODS as EVERY_METHOD
from closelook.lrp_core import Batch, load_model
from tests.jobs.inline import without_ray
from tests.jobs.labelled import METHODS, STS, curves_of, logits, run_of, views_of, write_folders
from tests.jobs.small import relevance_of
from tests.stages import attribute, evaluate, perturb, prune, select

pytestmark = pytest.mark.drawn


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return write_folders(tmp_path_factory.mktemp("labels"))


@pytest.fixture(scope="module")
def done(folders, tmp_path_factory):
    """A whole run: (config, store)."""
    config = run_of(folders, tmp_path_factory.mktemp("root"))
    with without_ray():
        store = Store(config.root)
        store.create()
        validate(config)
        for stage in (prepare, attribute, evaluate, perturb, report):
            assert not stage(config, store).failures
    return config, store


def test_views_of_labels_have_the_gold_label_and_pairs_their_token_types(done):
    _, views = views_of(*done, "sst2")
    assert {view["label"] for view in views} == {"negative", "positive"}
    assert {(view["target_id"], view["position"], view["score"]) for view in views} == {(None, 0, None)}
    _, views = views_of(*done, "stsb")
    assert sorted(view["score"] for view in views) == sorted(score for *_, score in STS)
    for view in views:
        first = view["input_ids"].index(3) + 1
        assert view["token_type_ids"] == [0] * first + [1] * (view["length"] - first)
        assert view["special_mask"] == [token in (2, 3) for token in view["input_ids"]]
        assert (view["target_id"], view["evidence_mask"]) == (0, None)


def test_relevance_is_of_the_label_that_the_model_predicts(done, folders):
    _, views = views_of(*done, "sst2")
    stock = {view["sample_id"]: logits(folders / "sentiment", view["input_ids"]) for view in views}
    tables = {name: table for name, table in relevance_of(*done).items() if "sst2" in name}
    assert len(tables) == len(METHODS)
    for table in tables.values():
        for row in table.to_pylist():
            expected = stock[row["sample_id"]]
            assert row["predicted_id"] == expected.argmax()
            assert row["logit_target"] == pytest.approx(expected.max(), abs=1e-5)
            assert row["logit_foil"] == pytest.approx(expected.min(), abs=1e-5)


@pytest.mark.parametrize("task", ["sst2", "stsb"])
def test_shares_of_the_top_tokens_are_masked_and_all_others(done, folders, task):
    model, views = views_of(*done, task)
    relevance = {cell.split("/")[-1]: table.to_pylist() for cell, table in relevance_of(*done).items() if task in cell}
    measured = curves_of(*done, task)
    assert set(measured) == set(relevance) == set(METHODS)
    for method, curves in measured.items():
        assert len(curves) == 2 * len(views)
        for curve in curves:
            view = next(view for view in views if view["sample_id"] == curve["sample_id"])
            [values] = [row["relevance"] for row in relevance[method] if row["sample_id"] == curve["sample_id"]]
            free = [at for at, special in enumerate(view["special_mask"]) if not special]
            order = sorted(free, key=lambda at: -values[at])
            assert (curve["percent"], curve["perturbation"]) == ([0, *range(10, 100, 10)], "mask")
            for at, percent in enumerate(curve["percent"]):
                top = order[: percent * len(free) // 100]
                gone = top if curve["order"] == "without_top" or percent == 0 else [t for t in free if t not in top]
                assert curve["removed"][at] == len(gone)
                ids = [4 if position in gone else token for position, token in enumerate(view["input_ids"])]
                expected = logits(folders / model.name, ids, view["token_type_ids"])
                assert curve["logit"][at] == pytest.approx(expected[curve["target_id"]], abs=1e-5)
                if task == "stsb":
                    assert (curve["probability"], curve["correct"]) == (None, None)
                    continue
                probabilities = np.exp(expected) / np.exp(expected).sum()
                assert curve["probability"][at] == pytest.approx(probabilities[curve["target_id"]], abs=1e-5)
                gold = ["negative", "positive"].index(view["label"])
                assert curve["correct"][at] == (expected.argmax() == gold)


def test_atman_explains_a_regressor_in_a_run_as_alone(folders, tmp_path, inline):
    config = run_of(folders, tmp_path / "run", ["score"], methods=["atman"])
    store = Store(config.root)
    store.create()
    assert not [failure for stage in (prepare, attribute) for failure in stage(config, store).failures]
    _, views = views_of(config, store, "stsb")
    [table] = relevance_of(config, store).values()
    rows, view = {row["sample_id"]: row for row in table.to_pylist()}, load_model(folders / "score")
    for sample in views:
        alone = EVERY_METHOD["atman"](view, Batch.collate([sample], 0)).tokens[0]
        assert rows[sample["sample_id"]]["relevance"] == pytest.approx(alone.tolist(), abs=1e-5)
        assert alone.abs().max() > 1e-3


def test_options_are_chosen_by_the_area_under_the_label_or_the_score(folders, tmp_path, inline):
    fixed = {"method": "smoothgrad", "samples": 2, "reduce": "l2"}
    settings, few = {"perturb": {"measures": ["areas"]}}, {"samples": 2}
    config = run_of(folders, tmp_path / "run", methods=[{**fixed, "sigma": [2.0, 0.1]}], select=few, **settings)
    each = [{**fixed, "name": f"smoothgrad-{sigma}", "sigma": sigma} for sigma in (2.0, 0.1)]
    other = run_of(folders, tmp_path / "other", methods=each, **settings)
    for run_config, stages in ((config, (prepare, select, attribute)), (other, (prepare, attribute, perturb))):
        Store(run_config.root).create()
        assert not [failure for stage in stages for failure in stage(run_config, Store(run_config.root)).failures]
    drawn = {model.name: model for model in make_plan(other, Store(other.root)).models}
    for model in make_plan(config, Store(config.root)).models:
        [choice] = model.choices
        asked = set(model.inputs[choice.artifact.task].ids(choice.rows))
        assert len(asked) == 2
        means = []
        for cell in curve_nodes(other, other.perturb, drawn[model.name]):
            every = Ledger(Store(other.root)).read(cell.artifact, CURVES).to_pylist()
            rows = [row for row in every if row["sample_id"] in asked]
            area = {order: [row["area"] for row in rows if row["order"] == order] for order in ("morf", "lerf")}
            means.append(np.mean(area["lerf"]) - np.mean(area["morf"]))
        assert [trial["delta_area"] for trial in choice.record["trials"]] == pytest.approx(means, abs=1e-5)
        assert choice.chosen == {"sigma": (2.0, 0.1)[int(np.argmax(means))]}


@pytest.mark.parametrize("task", ["sst2", "stsb"])
def test_aopc_sufficiency_accuracy_and_correlation_are_those_of_their_formulas(done, task):
    _, views = views_of(*done, task)
    gold = {view["sample_id"]: view["score"] for view in views}
    tables = {name: pa.Table.from_pylist(rows, CURVES) for name, rows in curves_of(*done, task).items()}
    measured = shares_of(tables, gold, "mask", Resampling(20))
    for method, table in tables.items():
        expected = defaultdict(list)
        columns = defaultdict(list)
        for row in table.to_pylist():
            columns[row["order"]].append((gold[row["sample_id"]], row["logit"][1:]))
            if task == "sst2":
                prefix = "" if row["order"] == "without_top" else "sufficiency_"
                drop = [row["probability"][0] - value for value in row["probability"][1:]]
                expected["aopc" if not prefix else "sufficiency"].append(drop)
                expected[f"{prefix}accuracy"].append(row["correct"][1:])
        if task == "stsb":
            for order, name in (("without_top", "pearson"), ("top_only", "sufficiency_pearson")):
                scores, predictions = zip(*columns[order], strict=True)
                expected[name] = [[np.corrcoef(scores, np.array(predictions)[:, k])[0, 1] for k in range(9)]]
        assert set(measured.measures) == set(expected)
        for name, values in expected.items():
            summary = measured.summaries[method, name]
            assert summary.value == pytest.approx(np.mean(values), abs=1e-6)
            assert (summary.n, summary.left_out) == (len(views), 0)
            curve = measured.curves[method, name]
            assert (curve.mean, curve.n) == (pytest.approx(np.mean(values, axis=0), abs=1e-6), len(views))
            assert (curve.low <= curve.high + 1e-9).all()


def test_the_report_has_every_measure_and_the_papers_numbers(done):
    _, store = done
    page = store.read_bytes("report/faithfulness.html").decode()
    for text in (
        "AOPC",
        "Sufficiency",
        "Pearson r",
        "NormXLogit: sst2 · bert-base-uncased",
        "0.423",
        "too high by a ninth",
        "probability lost without the top tokens; higher is better",
    ):
        assert text in page
    for name, panel in (("sst2_mask_aopc", "sentiment · Sufficiency"), ("stsb_mask_pearson", "score · Pearson r")):
        assert panel in store.read_bytes(f"report/figures/shares_{name}.svg").decode()
    samples = store.read_bytes("report/samples.html").decode()
    assert "(gold: " in samples


def test_a_causal_classifier_reads_the_last_token_and_loses_tokens_by_deletion(folders, tmp_path, inline):
    tasks = {"sst2": run_of(folders, tmp_path).tasks["sst2"].model_dump()}
    config = run_of(folders, tmp_path, ["causal"], tasks=tasks)
    store = Store(config.root)
    store.create()
    for stage in (prepare, attribute, perturb):
        assert not stage(config, store).failures
    _, views = views_of(config, store, "sst2")
    relevance = {cell.split("/")[-1]: table.to_pylist() for cell, table in relevance_of(config, store).items()}
    for method, curves in curves_of(config, store, "sst2").items():
        for curve in curves:
            view = next(view for view in views if view["sample_id"] == curve["sample_id"])
            assert view["position"] == view["length"] - 1
            [values] = [row["relevance"] for row in relevance[method] if row["sample_id"] == curve["sample_id"]]
            order = sorted(range(view["length"]), key=lambda at: -values[at])
            for at, percent in enumerate(curve["percent"]):
                count = percent * view["length"] // 100
                gone = order[:count] if curve["order"] == "without_top" or not percent else order[max(count, 1) :]
                left = [token for position, token in enumerate(view["input_ids"]) if position not in gone]
                expected = logits(folders / "causal", left)
                assert curve["perturbation"] == "delete"
                assert curve["logit"][at] == pytest.approx(expected[curve["target_id"]], abs=1e-5)


def test_heads_of_a_classifier_are_pruned_against_the_gold_labels(folders, tmp_path, inline):
    heads = {"heads": {"sst2": None}, "prune": {"poolings": ["none"], "random_runs": 1}, "perturb": None}
    tasks = {"sst2": run_of(folders, tmp_path).tasks["sst2"].model_dump()}
    config = run_of(
        folders, tmp_path, ["sentiment"], tasks=tasks, methods=["lrp"], explanations=["contrastive"], **heads
    )
    store = Store(config.root)
    store.create()
    for stage in (prepare, attribute, prune):
        assert not stage(config, store).failures
    _, views = views_of(config, store, "sst2")
    gold = [["negative", "positive"].index(view["label"]) for view in views]
    whole = [logits(folders / "sentiment", view["input_ids"]).argmax() for view in views]
    plan, ledger = make_plan(config, store), Ledger(store)
    [model] = plan.models
    drawn = [curves.artifact for curves in pruning_of(Run(config, plan, ledger), config.prune, model)]
    points = [row for artifact in drawn for row in ledger.read(artifact, PRUNING).to_pylist()]
    assert {row["method"] for row in points} == {"lrp", "random"}
    assert {(row["accuracy"], row["n"]) for row in points if row["step"] == 0 and row["half"] is None} == {
        (np.mean(np.equal(gold, whole)), len(views))
    }
