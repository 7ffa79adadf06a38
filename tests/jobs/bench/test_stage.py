"""The benchmark as a stage of a run: every model once, on the first prepared samples, kept as Parquet."""

from dataclasses import replace
from functools import partial

import pytest

from closelook.evaluation.schema import BENCH
from closelook.jobs.bench.table_8 import METHODS
from closelook.jobs.cluster.executor import executed_by
from closelook.jobs.commands.roots.status import collect
from closelook.jobs.config import RunConfig
from closelook.jobs.config.file import ConfigError
from closelook.jobs.plan.cells import make_plan
from closelook.jobs.plan.models import resolve
from closelook.jobs.plan.node import Plan, Run
from closelook.jobs.products.benchmarks import nodes
from closelook.jobs.stages.compute import compute
from closelook.jobs.stages.run import run
from closelook.jobs.store import Ledger
from tests.jobs.inline import Unused
from tests.jobs.small import config_of, prepared, rows_of, save_model

bench = partial(compute, stage="bench")
ROWS = [{**rows_of(1, seed=1)[0], "sample_id": "s999", "foil_id": None}, *rows_of(5)]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    return [save_model(folder / "gpt2"), save_model(folder / "bert", "bert")]


def run_of(root, *models, **changes):
    config = config_of(root, *models, **{"bench": {"samples": 3}, **changes})
    return config, prepared(config, ROWS)


def medians(store):
    """Of backward passes: (model, method) to (milliseconds, samples)."""
    rows = store.read("bench/lrp", BENCH).to_pylist()
    return {(row["model"], row["method"]): (row["value"], row["n"]) for row in rows if row["measure"] == "backward_ms"}


#: Models go through this process; at night, through Ray.
EXECUTORS = ["inline", pytest.param("local_ray", marks=[pytest.mark.ray, pytest.mark.nightly])]


@pytest.mark.parametrize("executor", EXECUTORS)
def test_every_model_is_measured_once_where_it_runs(tmp_path, models, request, executor):
    request.getfixturevalue(executor)
    config, store = run_of(tmp_path, *models)
    summary = bench(config, store)
    assert (summary.computed, summary.failures) == (2, ())
    measured = medians(store)
    assert set(measured) == {(model, method) for model in ("gpt2", "bert") for method in METHODS}
    assert all(milliseconds > 0 and n == 3 for milliseconds, n in measured.values())
    with executed_by(Unused()):
        again = bench(config, store)
    assert (again.computed, again.skipped) == (0, 2)


@pytest.mark.ray
def test_a_model_too_large_for_the_cluster_fails_alone(tmp_path, models, local_ray):
    config, store = run_of(tmp_path, *models, device="cuda")
    assert bench(config, store).failures == (
        "model gpt2 asks for more than the cluster has: 1 x 1 GPU",
        "model bert asks for more than the cluster has: 1 x 1 GPU",
    )
    assert store.files("bench", recursive=True) == []


def test_samples_without_a_foil_are_passed_over(tmp_path, models, inline):
    config, store = run_of(tmp_path, models[0], bench={"samples": 1000})
    assert bench(config, store).computed == 1
    assert {n for _, n in medians(store).values()} == {5}
    assert store.manifest("bench.lrp.gpt2")["samples"] == 5


def test_what_another_key_measured_is_replaced(tmp_path, models, inline):
    config, store = run_of(tmp_path, models[0])
    bench(config, store)
    (before,) = store.files("bench/lrp")
    other = config.model_copy(update={"bench": config.bench.model_copy(update={"samples": 2})})
    assert bench(other, store).computed == 1
    (after,) = store.files("bench/lrp")
    assert after != before
    assert {n for _, n in medians(store).values()} == {2}
    store.delete(after)
    assert bench(other, store).computed == 1, "a lost file is measured again"


def test_a_model_that_cannot_be_loaded_fails_alone(tmp_path, models, inline):
    broken = save_model(tmp_path / "broken")
    config, store = run_of(tmp_path / "root", broken, models[0])
    for weights in broken.glob("*.safetensors"):
        weights.write_bytes(b"nothing")
    summary = bench(config, store)
    assert summary.computed == 1
    assert len(summary.failures) == 1
    assert summary.failures[0].startswith("model broken cannot be loaded")
    assert {model for model, _ in medians(store)} == {"gpt2"}


def test_other_weights_are_measured_again(tmp_path, models):
    config, store = run_of(tmp_path, models[0])
    plan = make_plan(config, store)
    (measurement,) = nodes(Run(config, plan, Ledger(store)))
    other = save_model(tmp_path / "gpt2", seed=1)
    changed = resolve(config.models[0].model_copy(update={"id": str(other)}))
    (moved,) = nodes(Run(config, Plan((replace(measurement.plan, resolved=changed),)), Ledger(store)))
    assert moved.artifact.place == measurement.artifact.place
    assert moved.artifact.key != measurement.artifact.key


def test_a_task_that_the_run_does_not_have_is_an_error():
    with pytest.raises(ConfigError, match=r"bench.task: no task 'svaa' \(did you mean 'sva'\?\)"):
        RunConfig.load("demo", overrides=["bench.task=svaa"])


def test_status_counts_benchmarks(tmp_path, models, inline):
    config, store = run_of(tmp_path, models[0])

    def state():
        lines = collect(Run(config, make_plan(config, store), Ledger(store)))
        return lines["gpt2", "sva", "float32", "bench"].states

    assert state() == {"missing": 1}
    bench(config, store)
    assert state() == {"done": 1}


def test_a_run_benchmarks_only_where_the_config_says_so(tmp_path, models, monkeypatch):
    import closelook.jobs.stages.run as stages

    done = []
    monkeypatch.setattr(stages, "function_of", lambda name: lambda config, store: done.append(name))
    config, store = run_of(tmp_path, models[0])
    list(run(config, store))
    assert done == ["prepare", "attribute", "evaluate", "bench", "report"]
    done.clear()
    list(run(config.model_copy(update={"bench": None}), store))
    assert "bench" not in done
    list(run(config.model_copy(update={"bench": None}), store, ("bench",)))
    assert done[-1] == "bench", "asked for by name"
