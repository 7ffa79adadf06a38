"""Cells are keyed by content: what changes numbers changes the key, nothing else does."""

from dataclasses import replace

import pyarrow as pa
import pytest

from closelook.evaluation.schema import VIEW
from closelook.jobs.config.methods import configured
from closelook.jobs.config.settings import FINER_KEYS
from closelook.jobs.methods import METHODS
from closelook.jobs.plan import cells as planning
from closelook.jobs.plan.cells import make_plan, validate
from closelook.jobs.plan.finer import KEPT
from closelook.jobs.plan.inputs import Inputs
from closelook.jobs.products.table import stale
from closelook.jobs.store import Ledger
from closelook.lrp_core.records.capabilities import POST_NORM
from closelook.lrp_core.records.types import UserError
from tests.jobs.small import config_of, prepared, rows_of, save_model


@pytest.fixture
def base(tmp_path, model):
    config = config_of(tmp_path, model)
    return config, prepared(config, rows_of(10))


def keys(config, store) -> dict[str, str]:
    return {str(planned.artifact): planned.artifact.key for planned in make_plan(config, store).cells()}


@pytest.mark.parametrize(
    "change",
    [
        {"token_budget": 7},
        {"shard_rows": 2},
        {"max_attempts": 9},
        {"max_failed_share": 0.5},
        {"name": "another"},
        {"byte_budget": 1000},
        {"ray": {"no_progress_timeout_s": 60}},
        {"report": {"samples": 9}},
        {"prune": {"random_runs": 2}},
    ],
)
def test_changes_that_change_no_number_keep_every_key(base, model, tmp_path, change):
    config, store = base
    assert keys(config_of(tmp_path, model, **change), store) == keys(config, store)


def test_a_name_is_no_content(base, model, tmp_path):
    config, store = base
    renamed = config.model_copy(update={"models": (config.models[0].model_copy(update={"name": "other"}),)})
    assert set(keys(renamed, store).values()) == set(keys(config, store).values())


def test_the_seed_changes_only_random(base, model, tmp_path):
    config, store = base
    before, after = keys(config, store), keys(config_of(tmp_path, model, seed=1), store)
    assert {name for name in before if before[name] != after[name]} == {"relevance gpt2/sva/float32/random"}


def test_a_new_method_or_precision_adds_cells_and_keeps_the_others(base, model, tmp_path):
    config, store = base
    more = config_of(tmp_path, model, methods=[*config.methods, "lrp"])
    assert keys(more, store).items() > keys(config, store).items()
    double = {"name": model.name, "id": str(model), "dtypes": {"sva": ["float32", "float64"]}}
    assert keys(config_of(tmp_path, models=[double]), store).items() > keys(config, store).items()


def test_fewer_explanations_change_the_methods_that_have_them(base, model, tmp_path):
    config, store = base
    before, after = keys(config, store), keys(config_of(tmp_path, model, explanations=["target"]), store)
    assert {name.rsplit("/")[-1] for name in before if before[name] != after[name]} == {"attnlrp", "gradient_x_input"}


@pytest.mark.parametrize("column", ["input_ids", "target_id", "foil_id", "evidence_mask"])
def test_inputs_enter_the_key_and_evidence_does_not(column):
    def digest(rows):
        return Inputs("t", "sva", pa.Table.from_pylist(rows, schema=VIEW)).digest

    rows = rows_of(4)
    changed = [dict(row) for row in rows]
    changed[2][column] = (
        [True] * rows[2]["length"]
        if column == "evidence_mask"
        else ([5, *rows[2][column][1:]] if column == "input_ids" else 5)
    )
    assert (digest(rows) == digest(changed)) == (column == "evidence_mask")


def test_methods_that_a_family_lacks_are_not_planned_but_reported(base, model, tmp_path, monkeypatch):
    _, store = base
    post_norm = replace(METHODS["lrp"], needs=(POST_NORM,))
    monkeypatch.setattr(planning, "configured", lambda config: {**configured(config), "lrp": post_norm})
    plan = make_plan(config_of(tmp_path, model, methods=["lrp", "random"]), store)
    assert plan.undefined == (("gpt2", "lrp"),)
    assert [planned.artifact.method for planned in plan.cells()] == ["random"]


def test_heads_are_planned_for_the_subset_and_the_methods_that_have_them(base, model, tmp_path):
    _, store = base
    plan = make_plan(config_of(tmp_path, model, heads={"sva": 4}), store)
    heads = {
        planned.artifact.method: planned.samples for planned in plan.cells() if planned.artifact.product == "heads"
    }
    assert heads == {"attnlrp": 4, "gradient_x_input": 4}


def test_heads_are_planned_in_the_first_precision_of_a_task(base, model, tmp_path):
    _, store = base
    models = [{"name": "gpt2", "id": str(model), "dtypes": {"sva": ["float64", "float32"]}}]
    plan = make_plan(config_of(tmp_path, model, models=models, heads={"sva": 4}), store)
    dtypes = {(planned.artifact.product, planned.artifact.dtype) for planned in plan.cells()}
    assert dtypes == {("relevance", "float64"), ("relevance", "float32"), ("heads", "float64")}


def test_the_manifest_decides_what_is_done(base):
    config, store = base
    planned = next(make_plan(config, store).cells())
    cell = planned.artifact
    assert Ledger(store).state(cell) == "missing"
    store.write_bytes(f"{cell.folder}/{cell.key[:12]}-00000-aa.parquet", b"")
    assert Ledger(store).state(cell) == "partial"
    Ledger(store).commit(cell, {})
    assert Ledger(store).state(cell) == "done"


def replaced(store, plan):
    """Names of manifests of other keys in the places of the plan's cells."""
    return [name for _, name in stale(Ledger(store), [planned.artifact for planned in plan.cells()])]


def test_cells_that_another_key_has_replaced_are_stale(base, model, tmp_path):
    config, store = base
    for planned in make_plan(config, store).cells():
        cell = planned.artifact
        Ledger(store).commit(cell, {})
    assert replaced(store, make_plan(config, store)) == []
    reseeded = make_plan(config_of(tmp_path, model, seed=1), store)
    assert [name.split(".")[4] for name in replaced(store, reseeded)] == ["random"]
    fewer = make_plan(config_of(tmp_path, model, methods=["random"]), store)
    assert replaced(store, fewer) == [], "cells of methods that this run does not ask for are not its business"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"methods": ["atnlrp"]}, r"unknown method 'atnlrp' \(did you mean 'attnlrp'\?\)"),
        ({"models": [{"name": "m", "id": "demo/gtp2"}]}, r"unknown id 'demo/gtp2' \(did you mean 'demo/gpt2'\?\)"),
        ({"models": [{"name": "m", "id": "random/gpt3"}]}, "did you mean 'random/gpt2'"),
        ({"models": [{"name": "m", "id": "/no/such/model"}]}, "there is no directory /no/such/model"),
    ],
)
def test_what_cannot_exist_is_refused_before_anything_is_written(tmp_path, model, change, message):
    with pytest.raises(UserError, match=message):
        validate(config_of(tmp_path / "root", model, **change))
    assert not (tmp_path / "root").exists()


def test_a_model_directory_without_weights_is_refused(tmp_path):
    directory = save_model(tmp_path / "gpt2")
    (directory / "model.safetensors").unlink()
    with pytest.raises(UserError, match=r"model gpt2: .*/gpt2 has no \*.safetensors weights: give the folder"):
        validate(config_of(tmp_path / "root", directory))


@pytest.mark.parametrize("product", ["relevance", "heads"])
def test_what_is_stored_by_another_version_of_its_schema_is_another_cell(base, monkeypatch, product):
    config, store = base
    config = config.model_copy(update={"heads": {"sva": 4}})
    before, schema_of = keys(config, store), planning.schema_of

    def newer(name, dtype):
        schema = schema_of(name, dtype)
        return schema.with_metadata({**schema.metadata, b"closelook.version": b"999"}) if name == product else schema

    monkeypatch.setattr(planning, "schema_of", newer)
    after = keys(config, store)
    changed = {name for name in before if before[name] != after[name]}
    assert changed == {name for name in before if name.startswith(product)} != set()


def test_every_relevance_that_runs_keep_has_a_key_of_the_config():
    assert tuple(KEPT) == FINER_KEYS
