"""Randomisation of weights: numbers are those of the models, planted methods fail, random relevance is at chance."""

import pytest
import torch
from scipy import stats

from closelook.evaluation.schema import RANDOMISATION
from closelook.jobs.config import RunConfig
from closelook.jobs.config.file import ConfigError
from closelook.jobs.methods import METHODS
from closelook.jobs.plan.cells import make_plan
from closelook.jobs.plan.node import Run
from closelook.jobs.products.controls import rows as reading
from closelook.jobs.products.controls import shapley
from closelook.jobs.products.controls.randomisation import FIRST, chosen_depths, nodes, seed_of
from closelook.jobs.products.controls.rows import ControlRow, broken, control_rows
from closelook.jobs.stages.run import function_of
from closelook.jobs.store import Ledger, Store
from closelook.lrp_core import Batch, load_model
from closelook.lrp_core.interventions.randomised import randomised
from closelook.lrp_core.methods.records import PLANTED
from tests.jobs.inline import without_ray
from tests.jobs.small import config_of, prepared, rows_of, save_model
from tests.stages import controls

pytestmark = pytest.mark.drawn

#: Of at most six tokens, as the stage also enumerates all sets of a sample's tokens.
SHORT = [row for row in rows_of(40) if row["length"] <= 6][:10]
ROWS = [*SHORT[:9], {**SHORT[9], "sample_id": "s999", "foil_id": None}]
NO_TARGET = [{**row, "target_id": None, "foil_id": None} for row in SHORT[:4]]
PRODUCTS = 2  # of the stage, each with an artifact a method
METHODS_OF_RUN = ["attnlrp", "gradient_x_input", "attention_rollout"]


def run_of(root, model, rows=ROWS, **changes):
    config = config_of(root, model, **{"methods": METHODS_OF_RUN, "controls": {}, **changes})
    return config, prepared(config, rows)


def view_of_run(config, store):
    return Run(config, make_plan(config, store), Ledger(store))


def results(config, store):
    """Rows by method."""
    run = view_of_run(config, store)
    return {node.artifact.method: run.ledger.read(node.artifact, RANDOMISATION).to_pylist() for node in nodes(run)}


def tokens_of(view, method, row, target):
    batch = Batch.collate([{**row, "target_id": target, "foil_id": None}], pad_id=0)
    return METHODS[method](view, batch, explanation="target").tokens[0].numpy()


@pytest.fixture(scope="module")
def whole(tmp_path_factory, model):
    """(config, store, what the stage said) of a run of every method over all rows at once."""
    config, store = run_of(tmp_path_factory.mktemp("whole"), model)
    with without_ray():
        return config, store, controls(config, store)


def test_every_method_has_a_row_of_every_sample_and_depth(whole):
    *run, summary = whole
    by_method = results(*run)
    assert list(by_method) == [*METHODS_OF_RUN, *PLANTED, "random"]
    assert (summary.computed, summary.failures) == (PRODUCTS * len(by_method), ())
    depths = [("head", 1, False), ("block 0", 2, False), ("embeddings", 3, True)]
    for rows in by_method.values():
        expected = sorted((row["sample_id"], *depth) for row in ROWS for depth in depths)
        keys = ("sample_id", "depth", "step", "last")
        assert sorted(tuple(row[key] for key in keys) for row in rows) == expected
        assert all((row["architecture"] is None) == (not row["last"]) for row in rows)


def test_numbers_are_the_correlations_of_the_models(whole, model):
    config, store, _ = whole
    by_method = results(config, store)
    view = load_model(model)
    for method in ("attnlrp", "gradient_x_input"):
        trained = [tokens_of(view, method, row, row["target_id"]) for row in ROWS]
        with randomised(view, seed_of(config.seed, FIRST)) as models:
            for depth, changed in models:
                by_sample = {row["sample_id"]: row for row in by_method[method] if row["depth"] == depth}
                for row, before in zip(ROWS, trained, strict=True):
                    after = tokens_of(changed, method, row, row["target_id"])
                    signed = stats.spearmanr(before, after).statistic
                    absolute = stats.spearmanr(abs(before), abs(after)).statistic
                    entry = by_sample[row["sample_id"]]
                    assert entry["signed"] == pytest.approx(signed, abs=1e-9)
                    assert entry["absolute"] == pytest.approx(absolute, abs=1e-9)
                    assert entry["tokens"] == row["length"]


def test_samples_without_a_target_keep_the_trained_models_prediction(tmp_path, model, inline):
    config, store = run_of(tmp_path, model, NO_TARGET, methods=["gradient_x_input"])
    controls(config, store)
    view = load_model(model)
    by_sample = {row["sample_id"]: row for row in results(config, store)["gradient_x_input"] if row["last"]}
    with torch.no_grad():
        targets = [int(view.model(torch.tensor([row["input_ids"]])).logits[0, -1].argmax()) for row in NO_TARGET]
    trained = [tokens_of(view, "gradient_x_input", *pair) for pair in zip(NO_TARGET, targets, strict=True)]
    with randomised(view, seed_of(config.seed, FIRST)) as models:
        _, changed = next(models)
        for row, target, before in zip(NO_TARGET, targets, trained, strict=True):
            after = tokens_of(changed, "gradient_x_input", row, target)
            assert by_sample[row["sample_id"]]["signed"] == pytest.approx(stats.spearmanr(before, after).statistic)


def test_units_and_batches_change_no_number(tmp_path, whole, model, inline):
    expected = results(*whole[:2])
    parts, other = run_of(tmp_path, model, shard_rows=3, token_budget=16)
    controls(parts, other)
    by_method = results(parts, other)
    assert len(Ledger(other).files(next(nodes(view_of_run(parts, other))).artifact)) > 1
    for method, rows in expected.items():
        order = lambda row: (row["sample_id"], row["step"])  # noqa: E731
        for row, again in zip(sorted(rows, key=order), sorted(by_method[method], key=order), strict=True):
            assert row["signed"] == pytest.approx(again["signed"], abs=1e-6), method


def test_settings_name_tasks_methods_and_depths(tmp_path, model, inline):
    settings = {"methods": ["attnlrp"], "samples": 4, "depths": 2}
    config, store = run_of(tmp_path, model, methods=[*METHODS_OF_RUN, "random"], controls=settings)
    controls(config, store)
    by_method = results(config, store)
    assert list(by_method) == ["attnlrp", *PLANTED, "random"]
    assert {row["depth"] for row in by_method["attnlrp"]} == {"head", "embeddings"}
    assert len({row["sample_id"] for row in by_method["attnlrp"]}) == 4
    assert list(nodes(view_of_run(config.model_copy(update={"controls": None}), store))) == []


def test_the_first_explanation_that_every_sample_has_is_held_against_controls(tmp_path, model):
    for rows, settings, explanation in (
        (ROWS, {}, "target"),
        (ROWS[:-1], {}, "contrastive"),
        (ROWS[:-1], {"explanation": "target"}, "target"),
    ):
        config, store = run_of(tmp_path / explanation / str(len(settings)), model, rows, controls=settings)
        node = next(nodes(view_of_run(config, store)))
        assert node.requests[0].explanation == explanation
    with pytest.raises(ConfigError, match=r"controls\.explanation': the run does not compute 'log_prob'"):
        RunConfig.load("smoke", overrides=["controls.explanation=log_prob"])


def test_a_sample_without_a_foil_is_a_reject_where_contrasts_are_asked_for(tmp_path, model, inline):
    config, store = run_of(tmp_path, model, controls={"explanation": "contrastive"}, methods=["lrp"])
    controls(config, store)
    record = Ledger(store).record(next(nodes(view_of_run(config, store))).artifact)
    assert (record["state"], record["rejects"]) == ("complete", {"no_foil": 1})


@pytest.mark.parametrize("family", ["bert", "bloom"])
def test_other_models_have_controls_too(tmp_path, family, inline):
    directory = save_model(tmp_path / family, family)
    model = {"name": family, "id": str(directory)} | ({"family": "generic"} if family == "bloom" else {})
    settings = {"models": [model], "methods": ["gradient_x_input"], "controls": {}}
    config = config_of(tmp_path / "root", directory, **settings)
    store = prepared(config, [{**row, "position": 1} for row in ROWS] if family == "bert" else ROWS)
    assert controls(config, store).failures == ()
    assert {round(row["signed"], 12) for row in results(config, store)["position_only"]} == {1.0}


def test_depths_are_even_and_end_at_the_last():
    assert chosen_depths(5, None) == {1, 2, 3, 4, 5}
    assert chosen_depths(14, 1) == {14}
    for count in range(2, 20):
        for limit in range(2, count):
            depths = chosen_depths(count, limit)
            assert {1, count} <= depths
            assert len(depths) == limit


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    """The rows of demo/gpt2's controls."""
    settings = {
        "name": "controls",
        "root": str(tmp_path_factory.mktemp("controls")),
        "tasks": {"sva": {"source": "demo", "limit": 30}},
        "models": [{"name": "gpt2", "id": "demo/gpt2"}],
        "methods": ["attnlrp", "lrp", "attention_rollout"],
        "controls": {"depths": 2},
    }
    config = RunConfig.model_validate(settings)
    store = Store(config.root)
    store.create()
    with without_ray(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(shapley, "MOST", 0)  # no row of these controls is held against exact values
        function_of("prepare")(config, store)
        controls(config, store)
    return list(control_rows(view_of_run(config, store)))


def verdicts(rows):
    return {row.method: row for row in rows if row.control in (reading.RANDOMISED, reading.CHANCE)}


def test_planted_methods_fail_and_random_relevance_is_at_chance_on_a_trained_model(rows):
    by_method = verdicts(rows)
    for name in PLANTED:
        assert by_method[name][:5] == ("gpt2", "sva", name, "randomisation", 1.0)
        assert by_method[name].passed is False
        assert by_method[name].n == 30
    assert by_method["random"].control == "chance"
    assert by_method["random"].passed is True
    assert broken(rows) == []


def test_rules_pass_and_rollout_fails_on_a_trained_model(rows):
    by_method = verdicts(rows)
    assert by_method["attnlrp"].passed is True
    assert by_method["lrp"].passed is True
    assert by_method["attention_rollout"].passed is False
    assert by_method["attention_rollout"].low > 0.5


def test_rows_by_depth_end_with_the_verdicts_numbers(rows):
    by_depth = [row for row in rows if (row.control, row.method) == (reading.BY_DEPTH, "lrp")]
    assert [row.detail for row in by_depth] == ["head", "embeddings"]
    assert by_depth[-1][4:7] == verdicts(rows)["lrp"][4:7]
    (architecture,) = (row for row in rows if (row.control, row.method) == ("architecture", "attention_rollout"))
    assert architecture.value > 0.9


def test_a_control_that_passes_a_planted_method_is_named():
    passed = ControlRow("m", "t", "constant", "randomisation", 0.1, 0.0, 0.15, True, 30)
    off = ControlRow("m", "t", "random", "chance", 0.5, -0.2, 0.2, False, 30)
    assert broken([passed, off]) == [
        "m/t: randomisation passes constant, which must fail",
        "m/t: chance: random is at 0.500, outside of [-0.200, 0.200]",
    ]
    assert broken([passed._replace(passed=False), off._replace(passed=True)]) == []
