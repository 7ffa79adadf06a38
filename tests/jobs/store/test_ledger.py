"""The ledger tells what is done by the manifests, whoever wrote them, and no question changes the store."""

from dataclasses import replace

import pyarrow as pa
import pytest

from closelook.evaluation.schema import VIEW
from closelook.jobs.commands.roots import gc
from closelook.jobs.plan.inputs import read_inputs
from closelook.jobs.plan.node import Run
from closelook.jobs.products.table import PRODUCTS, nodes
from closelook.jobs.store import Artifact, Ledger, Store
from closelook.jobs.store.artifacts import views_of
from tests.jobs.small import rows_of
from tests.stages import score_plan
from tests.synthetic import CONFIG, write_store

RELEVANCE = Artifact("relevance", "gpt2", "sva", "float32", "lrp", "a" * 64)
CURVES = Artifact("pruning", "gpt2", "sva", "float32", "lrp", "a" * 64)
SCORED = Artifact("scores", "gpt2", "sva", "float32", "lrp", "a" * 64)


def put(store, artifact, *units):
    """Shards as workers leave them."""
    for unit in units:
        for folder in artifact.folders:
            store.write_bytes(f"{folder}/{artifact.shard(unit)}", b"")


def everything(store):
    return {path: store.read_bytes(path) for path in store.files("", "", recursive=True)}


@pytest.mark.parametrize("artifact", [RELEVANCE, CURVES, SCORED], ids=lambda artifact: artifact.product)
def test_an_artifact_is_done_when_it_is_entered_under_its_own_key(store, artifact):
    assert Ledger(store).state(artifact) == "missing"
    put(store, artifact, "0")
    assert Ledger(store).state(artifact) == ("partial" if artifact.is_keyed() else "missing")
    ledger = Ledger(store)
    ledger.commit(artifact, {"shards": [artifact.shard("0")]})
    for who in (ledger, Ledger(store)):
        assert who.state(artifact) == "done"
        assert who.state(replace(artifact, key="b" * 64)) == "missing"
        assert who.files(artifact) == [f"{artifact.folder}/{artifact.shard('0')}"]
    record = store.manifest(artifact.name)
    assert record["key"] == artifact.key
    assert {"state", "versions", "written"} <= record.keys()


def test_relevance_of_other_keys_stays_and_curves_replace_theirs(store):
    for artifact in (RELEVANCE, CURVES):
        other = replace(artifact, key="b" * 64)
        for version in (other, artifact):
            put(store, version, "0", "1")
            Ledger(store).commit(version, {"shards": [version.shard("0"), version.shard("1")]})
        assert len(store.files(artifact.folder)) == (2 if artifact.replaces else 4)
        assert Ledger(store).is_done(artifact)
        assert Ledger(store).is_done(other) is not artifact.replaces


def test_a_method_whose_name_begins_like_another_keeps_its_curves(store):
    longer = replace(CURVES, method="lrp-0")
    for artifact in (longer, CURVES):
        put(store, artifact, "0")
        Ledger(store).commit(artifact, {"shards": [artifact.shard("0")]})
    moved = replace(CURVES, key="b" * 64)
    put(store, moved, "0")
    Ledger(store).commit(moved, {"shards": [moved.shard("0")]})
    assert store.files(CURVES.folder) == sorted(
        f"{CURVES.folder}/{artifact.shard('0')}" for artifact in (moved, longer)
    )


def test_what_is_forgotten_has_no_manifest_and_shards_that_a_run_completes(store):
    put(store, CURVES, "0")
    ledger = Ledger(store)
    ledger.commit(CURVES, {"shards": [CURVES.shard("0")]})
    ledger.forget(CURVES)
    for who in (ledger, Ledger(store)):
        assert (who.record(CURVES), who.state(CURVES)) == (None, "partial")


@pytest.mark.parametrize("artifact", [CURVES, SCORED], ids=lambda artifact: artifact.product)
def test_what_is_entered_again_under_its_key_keeps_its_files(artifact, store):
    put(store, artifact, "0", "1")
    before = store.files("", recursive=True)
    for complete in (False, True):
        shards = [artifact.shard(unit) for unit in ("0", "1")]
        Ledger(store).commit(artifact, {"shards": shards}, complete=complete)
    assert Ledger(store).is_done(artifact)
    assert store.files("", recursive=True) == before


def test_no_question_changes_the_store(tmp_path, monkeypatch):
    store, plan = write_store(tmp_path, tasks=("sva",), samples=8)
    score_plan(CONFIG, plan, store)
    cell = plan.models[0].cells[0].artifact
    store.delete(f"manifest/{cell.name}.json")  # its scores are there, and count no more
    monkeypatch.setattr(gc, "make_plan", lambda config, store: plan)
    before = everything(store)
    states = [
        node.state(Ledger(store))
        for product, node in nodes(Run(CONFIG, plan, Ledger(store)))
        if product.name == "scores"
    ]
    assert sorted(states) == ["done", "done", "done", "missing"]
    assert list(gc.garbage(CONFIG, store)) == []
    assert everything(store) == before


def test_products_stand_in_the_table_under_their_own_names():
    assert all(product.name == name for name, product in PRODUCTS.items())


def test_manifests_are_listed_and_each_is_read_once(store, monkeypatch):
    for number in range(3):
        store.write_manifest(f"scores.{number}", {"n": number, "files": {}})
    read, paths = Store.read_bytes, []
    monkeypatch.setattr(Store, "read_bytes", lambda store, path: paths.append(path) or read(store, path))
    for _ in range(3):
        assert [record["n"] for _, record in Ledger(store).records()] == [0, 1, 2]
    assert len(paths) == 3
    store.write_manifest("scores.1", {"n": 7, "files": {}})
    store.delete("manifest/scores.2.json")
    assert [record["n"] for _, record in Ledger(store).records()] == [0, 7]
    assert len(paths) == 4


def test_views_are_read_once_until_they_change(store, monkeypatch):
    table = pa.Table.from_pylist(rows_of(4), schema=VIEW)
    store.write_shard(f"{views_of('t', 'sva').folder}/0.parquet", table, VIEW)
    Ledger(store).commit(views_of("t", "sva"), {"shards": ["0.parquet"], "rows": 4})
    read, paths = Store.read_shard, []
    monkeypatch.setattr(Store, "read_shard", lambda store, path, *rest: paths.append(path) or read(store, path, *rest))
    assert read_inputs(Ledger(store), "t", "sva") is read_inputs(Ledger(store), "t", "sva")
    assert len(paths) == 1
    store.write_shard(f"{views_of('t', 'sva').folder}/1.parquet", table, VIEW)
    Ledger(store).commit(views_of("t", "sva"), {"shards": ["0.parquet", "1.parquet"], "rows": 8})
    assert read_inputs(Ledger(store), "t", "sva").table.num_rows == 8
