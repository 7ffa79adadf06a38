"""Artifacts made from cells follow them: their state is shown, and those whose key was replaced are removed."""

from collections import Counter
from dataclasses import replace

import pytest

from closelook.jobs.commands.roots import gc
from closelook.jobs.commands.roots.status import collect
from closelook.jobs.config import PruneConfig
from closelook.jobs.plan.node import Cell, Plan, Run
from closelook.jobs.products.pruning import pruning_of
from closelook.jobs.store import Artifact, Ledger
from closelook.lrp_core.records.types import Request
from tests.stages import score_plan
from tests.synthetic import CONFIG, a_cell, relevance_rows, write_benchmark, write_cell, write_store

PRUNING = CONFIG.model_copy(update={"prune": PruneConfig(random_runs=2)})


@pytest.fixture
def scored(tmp_path, monkeypatch):
    """A scored store whose plan also wants curves of AttnLRP; (store, plan)."""
    store, plan = write_store(tmp_path, tasks=("sva",), samples=8)
    heads = Cell(artifact=Artifact("heads", "gpt2", "sva", "float32", "attnlrp", "k"), requests=(attnlrp(),), samples=8)
    plan = Plan((replace(plan.models[0], cells=(*plan.models[0].cells, heads)),))
    score_plan(PRUNING, plan, store)
    monkeypatch.setattr(gc, "make_plan", lambda config, store: plan)
    return store, plan


def attnlrp():
    return Request("attnlrp", "contrastive", "full")


def draw(store, curves, key=None):
    """Write the files of a complete set of curves, under its own key or another. Returns the first shard's path."""
    curves = replace(curves.artifact, key=key or curves.artifact.key)
    store.write_bytes(begun(curves), b"")
    Ledger(store).commit(curves, {"shards": [curves.shard("000")]})
    return begun(curves)


def begun(curves):
    """The first shard."""
    return f"{curves.folder}/{curves.shard('000')}"


def stale(store):
    """Files that `gc --yes` removes, in its order."""
    return [path for group in gc.garbage(PRUNING, store) if not group.leftover for path in group.files]


def states(plan, store, product):
    return collect(Run(PRUNING, plan, Ledger(store)))["gpt2", "sva", "float32", product].states


def test_scores_and_curves_are_counted_by_state(scored):
    store, plan = scored
    assert states(plan, store, "scores") == Counter(done=4)
    ranked, drawn_at_random = pruning_of(Run(PRUNING, plan, Ledger(store)), PRUNING.prune, plan.models[0])
    assert states(plan, store, "pruning") == Counter(missing=2)
    draw(store, ranked)
    store.write_bytes(begun(drawn_at_random.artifact), b"")
    assert states(plan, store, "pruning") == Counter(done=1, partial=1)


def test_scores_of_a_cell_that_changed_are_missing(scored):
    store, plan = scored
    assert stale(store) == []
    changed = a_cell(method="random")
    rows = relevance_rows(write_benchmark(store, "sva", 8), "random", seed=3)
    write_cell(store, changed, rows, state="partial")
    assert states(plan, store, "scores") == Counter(done=3, missing=1)


def test_curves_of_other_heads_are_removed_and_begun_ones_kept(scored):
    store, plan = scored
    ranked, drawn_at_random = pruning_of(Run(PRUNING, plan, Ledger(store)), PRUNING.prune, plan.models[0])
    old = draw(store, ranked, key="f" * 64)
    store.write_bytes(begun(ranked.artifact), b"")
    draw(store, drawn_at_random)
    assert states(plan, store, "pruning") == Counter(partial=1, done=1)
    assert stale(store) == [old, f"manifest/{ranked.artifact.name}.json"]
