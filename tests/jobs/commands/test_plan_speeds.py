"""Speeds that a plan assumes for GPUs: of those that support a model's precision."""

import pytest

from closelook.jobs.commands.roots.plan import costs, show
from closelook.jobs.commands.roots.plan_costs import FLOPS, SLOW_FLOAT64, Basis, speed, without_nodes
from closelook.jobs.config import RunConfig
from closelook.jobs.config.file import ConfigError
from closelook.jobs.plan.cells import make_plan
from closelook.jobs.plan.node import Plan
from closelook.jobs.store import Ledger, Store

SLOW = {"count": 3, "gpus": 1, "labels": {"float64": "slow"}}
FAST = {"count": 1, "gpus": 1, "labels": {"float64": "fast"}}
SILENT = {"count": 1, "gpus": 2}
ANYWHERE, WHERE_FAST = {}, {"float64": {"float64": "fast"}}


def config_of(root, nodes, precisions):
    """A model without weights in two precisions."""
    return RunConfig.model_validate(
        {
            "name": "two",
            "root": str(root),
            "device": "cuda",
            "tasks": {"sva": {"source": "demo", "limit": 10}},
            "models": [{"name": "gpt2", "id": "openai-community/gpt2", "dtypes": {"sva": ["float32", "float64"]}}],
            "methods": ["attnlrp"],
            "ray": {"nodes": nodes, "precisions": precisions},
        }
    )


@pytest.mark.parametrize(
    ("nodes", "precisions", "float64"),
    [
        (None, WHERE_FAST, FLOPS["float64"]),
        ([FAST], WHERE_FAST, FLOPS["float64"]),
        ([SLOW], ANYWHERE, SLOW_FLOAT64),
        ([SLOW], WHERE_FAST, None),
        ([SILENT], WHERE_FAST, FLOPS["float64"]),
        ([SLOW, FAST], WHERE_FAST, FLOPS["float64"]),
        ([SLOW, FAST], ANYWHERE, (3 * SLOW_FLOAT64 + FLOPS["float64"]) / 4),
        ([{**SILENT, "tflops": {"float64": 40}}, FAST], WHERE_FAST, (2 * 4e13 + FLOPS["float64"]) / 3),
        ([{"gpus": 1, "labels": {"ray.io/accelerator-type": "L4"}}], ANYWHERE, SLOW_FLOAT64),
    ],
)
def test_an_estimate_takes_the_gpus_that_a_precision_goes_to(nodes, precisions, float64, tmp_path):
    config = config_of(tmp_path, nodes, precisions)
    (model,) = config.models
    assert speed(config, model, "float64") == float64
    assert speed(config, model, "float32") == FLOPS["float32"], "of every kind"
    store = Store(config.root)
    single, double = costs(Basis(config, Ledger(store), make_plan(config, store), {}))
    if float64 is None:
        assert double.seconds is None
        assert list(without_nodes(config)) == ["model gpt2 in float64: none of ray.nodes has 1 GPU and float64=fast"]
    else:
        assert double.seconds == pytest.approx(single.seconds * FLOPS["float32"] / float64)
        assert list(without_nodes(config)) == []


def test_a_plan_says_what_it_assumes_and_what_finds_no_node(tmp_path, capsys):
    config = config_of(tmp_path, [SLOW], WHERE_FAST)
    show(config, Store(config.root))
    shown = capsys.readouterr().out
    assert "model gpt2 in float64: none of ray.nodes has 1 GPU and float64=fast" in shown
    assert f"float64 {SLOW_FLOAT64 / 1e12:.2g} on nodes that are labelled as slow" in shown


def test_a_plan_does_not_estimate_for_samples_that_nobody_has_read(tmp_path, capsys):
    (tmp_path / "mine.jsonl").write_text('{"text": "The keys ___", "target": "are", "evidence": "keys"}')
    config = config_of(tmp_path / "root", [FAST], ANYWHERE)
    tried = {"integrated_gradients": {"steps": [2, 3]}}
    mine = {"tasks": {"mine": {"source": "samples", "path": str(tmp_path / "mine.jsonl")}}, "methods": [tried]}
    models = [{"name": "gpt2", "id": "openai-community/gpt2"}]
    changes = {"select": {}, "perturb": {}, "models": models, "explanations": ["target"]}
    config = RunConfig.model_validate(config.model_dump() | mine | changes)
    show(config, Store(config.root))
    shown = capsys.readouterr().out
    assert shown.count("device time unknown") == 3
    assert "0.0 s" not in shown
    assert "not counted, as `closelook prepare` has not read them: the samples of mine" in shown


def test_several_gpus_of_a_worker_are_of_one_node(tmp_path):
    config = config_of(tmp_path, [FAST, SILENT], ANYWHERE)
    pair = config.models[0].model_copy(update={"gpus": 2.0})
    assert speed(config, pair, "float64") == FLOPS["float64"]
    assert speed(config_of(tmp_path, [FAST], ANYWHERE), pair, "float64") is None


@pytest.mark.parametrize("name", ["paper", "normxlogit"])
def test_every_model_of_a_papers_experiment_is_estimated_while_it_is_out_of_reach(name, tmp_path):
    config = RunConfig.load(name, str(tmp_path))
    estimates = costs(Basis(config, Ledger(Store(config.root)), Plan(()), {}))
    assert {estimate.model for estimate in estimates} == {model.name for model in config.models}
    assert all(
        estimate.seconds is not None and estimate.seconds > 0 and not estimate.measured for estimate in estimates
    )


def test_a_shape_that_there_is_not_names_the_nearest():
    wrong = r"'models.roberta-base.shape': no geometry 'roberta-bse' \(did you mean 'roberta-base'"
    with pytest.raises(ConfigError, match=wrong):
        RunConfig.load("normxlogit", overrides=["models.roberta-base.shape=roberta-bse"])
