"""Keys of every product: what decides its numbers changes its key and the keys of all that is made of it, no other."""

from dataclasses import replace
from importlib import import_module

import pytest

from closelook.jobs.config.methods import configured
from closelook.jobs.methods import METHODS
from closelook.jobs.plan import cells as planning
from closelook.jobs.plan.cells import make_plan
from closelook.jobs.plan.node import Run
from closelook.jobs.products.controls import controlled
from closelook.jobs.products.table import PRODUCTS, nodes
from closelook.jobs.store import Ledger
from tests.jobs.small import config_of, prepared, rows_of, save_model

OPEN = {"attention_rollout": {"discard_threshold": [0.4, 0.9]}}
PRUNE, PERTURB = {"random_runs": 2}, {"ways": ["zero"]}
RUN = {
    "methods": ["attnlrp", "random", OPEN],
    "heads": {"sva": 4},
    "layers": {"sva": 4},
    "prune": PRUNE,
    "perturb": PERTURB,
    "controls": {"samples": 4},
    "select": {"samples": 4},
    "bench": {"task": "sva", "samples": 5},
}
KNOCKOUT = {"counts": [1, 3]}
OF_NEURONS = {"heatmaps", "knockouts attnlrp"}
CONTROLS_OF_ATTNLRP = {"randomisation attnlrp", "shapley attnlrp"}
OF_ATTNLRP = {"heads", "neurons", "scores attnlrp", "pruning attnlrp", "curves attnlrp", *OF_NEURONS}
OF_RANDOM = {"layers", "layer_scores", "scores random", "curves random"}
OF_ANSWERS = {"ablations", "sources"}  # of tasks that explain whole answers
OF_CONTEXTS = {"heatmaps"}
UNTRIED = {"benchmark", "views", "report", "labels", *OF_ANSWERS}
OF_SAMPLES = set(PRODUCTS) - {"contexts", *UNTRIED}


@pytest.fixture(scope="module")
def folder(tmp_path_factory, model):
    """A folder with two corpora and the same model under other weights."""
    folder = tmp_path_factory.mktemp("place")
    (folder / "texts.txt").write_text("w4 w5 w6\nw7 w8\n")
    (folder / "other.txt").write_text("w4 w5 w6\nw7 w9\n")
    save_model(folder / "gpt2", seed=1)
    return folder


@pytest.fixture
def keys(tmp_path, model, folder):
    """The key of everything that a run wants, by product and method, after a change of its samples or settings."""

    def of(row=(), weights=model, file="texts.txt", tasks=3, knockout=KNOCKOUT, corpus=(), **settings):
        corpus = {"source": "text", "path": str(folder / file), "tokens": 16, "top": 4, **dict(corpus)}
        neurons = {"tasks": {"sva": tasks}, "knockout": knockout, "corpus": corpus}
        rows = rows_of(10)
        rows[2] |= dict(row)
        config = config_of(tmp_path, weights, **{**RUN, "neurons": neurons, **settings})
        store = prepared(config, rows)
        every = nodes(Run(config, make_plan(config, store), Ledger(store)))
        named = {f"{product.name} {node.artifact.method}".strip(): node.artifact.key for product, node in every}
        del named["report"]  # it is written anew whatever changes
        return named

    return of


def changed(before, after):
    assert before.keys() == after.keys()
    return {name for name in before if before[name] != after[name]}


def all_of(names, keys):
    """The names in `keys` of these products, and those of one method that are named in full."""
    return {name for name in keys if names & {name, name.split()[0]}}


def test_every_product_that_workers_compute_but_labels_is_among_those_whose_keys_are_tried(keys):
    assert {name.split()[0] for name in keys()} == {*PRODUCTS} - UNTRIED


def named(value):
    """The name of a parameter, the same in every process: sets have no order."""
    return "+".join(sorted(value)) if isinstance(value, set) else str(value)


@pytest.mark.parametrize(
    ("row", "names"),
    [
        ({"sample_id": "another"}, OF_SAMPLES),
        ({"input_ids": [5] * 12, "special_mask": [False] * 12, "evidence_mask": [True] * 12}, OF_SAMPLES),
        ({"position": 1}, OF_SAMPLES),
        ({"foil_id": 5}, OF_SAMPLES),
        ({"special_mask": [True] * 12}, {"trials", "curves", "scores", "layer_scores"}),
        ({"scope_mask": [True] * 12}, {"trials", "curves", "scores", "layer_scores"}),
        ({"score": 1.0}, {"pruning", "curves"}),
        ({"evidence_mask": [True] * 12}, {"scores", "layer_scores"}),
    ],
)
def test_other_samples_change_the_keys_of_what_depends_on_them(row, names, keys):
    before = keys()
    assert changed(before, keys(row)) == all_of(names, before)


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        ({"models": "eager"}, {*OF_SAMPLES, "contexts"}),
        ({"heads": {"sva": 3}}, {"heads", "pruning"}),
        ({"layers": {"sva": 3}}, {"layers", "layer_scores"}),
        ({"tasks": 2}, {"neurons", "heatmaps", "knockouts"}),
        ({"knockout": {**KNOCKOUT, "counts": [2]}}, {"knockouts"}),
        ({"knockout": {**KNOCKOUT, "explanation": "target"}}, {"knockouts"}),
        ({"file": "other.txt"}, {"contexts", *OF_CONTEXTS}),
        ({"corpus": {"top": 3}}, {"contexts", *OF_CONTEXTS}),
        ({"corpus": {"tokens": 8}}, {"contexts", *OF_CONTEXTS}),
        ({"corpus": {"ranks": 3}}, {"heatmaps"}),
        ({"prune": {**PRUNE, "orders": ["most_first"]}}, {"pruning attnlrp"}),
        ({"prune": {**PRUNE, "poolings": ["none"]}}, {"pruning attnlrp"}),
        ({"prune": {"random_runs": 3}}, {"pruning random"}),
        ({"prune": {**PRUNE, "step": 2}}, {"pruning"}),
        ({"perturb": {**PERTURB, "steps": 3}}, {"trials", "curves"}),
        ({"perturb": {**PERTURB, "flip_special": False}}, {"trials", "curves"}),
        ({"perturb": {**PERTURB, "samples": 3}}, {"curves"}),
        ({"perturb": {**PERTURB, "embeddings": ["full"]}}, {"curves attnlrp"}),
        ({"controls": {"samples": 3}}, {"randomisation", "shapley"}),
        ({"controls": {"samples": 4, "depths": 2}}, {"randomisation"}),
        ({"controls": {"samples": 4, "explanation": "target"}}, CONTROLS_OF_ATTNLRP),
        ({"select": {"samples": 3}}, {"trials"}),
        ({"methods": ["attnlrp", "random", {"attention_rollout": {"discard_threshold": [0.4, 0.8]}}]}, {"trials"}),
        ({"bench": {"task": "sva", "samples": 4}}, {"bench"}),
    ],
    ids=named,
)
def test_other_settings_change_the_keys_of_what_depends_on_them(settings, names, keys, model):
    before = keys()
    if settings == {"models": "eager"}:
        settings = {"models": [{"name": model.name, "id": str(model), "attn": "eager"}]}
    assert changed(before, keys(**settings)) == all_of(names, before)


def test_other_weights_change_the_key_of_everything(keys, folder):
    before = keys()
    assert changed(before, keys(weights=folder / "gpt2")) == set(before)


def test_the_seed_changes_what_is_drawn(keys):
    """The relevance of AttnLRP for all samples, its scores and a corpus that is read whole are not."""
    before = keys()
    assert changed(before, keys(seed=1)) == set(before) - {"relevance attnlrp", "scores attnlrp", "contexts", "bench"}


def test_a_new_version_of_a_method_makes_all_that_is_made_of_it_stale(keys, monkeypatch):
    before = keys()
    newer = replace(METHODS["attnlrp"], version=99)
    for module in (planning, controlled):
        monkeypatch.setattr(module, "configured", lambda config: {**configured(config), "attnlrp": newer})
    names = {"relevance attnlrp", *CONTROLS_OF_ATTNLRP, *OF_ATTNLRP}
    assert changed(before, keys()) == all_of(names, before)


@pytest.mark.parametrize(
    ("module", "names"),
    [
        ("closelook.jobs.plan.cells", {"relevance", *OF_ATTNLRP, *OF_RANDOM}),
        ("closelook.jobs.plan.choices", {"trials"}),
        ("closelook.jobs.products.neurons.contexts", {"contexts", *OF_CONTEXTS}),
        ("closelook.jobs.plan.choices:CURVES_VERSION", {"trials", "curves"}),
        ("closelook.jobs.products.neurons.heatmaps", {"heatmaps"}),
        ("closelook.jobs.products.neurons.knockouts", {"knockouts"}),
        ("closelook.jobs.products.benchmarks", {"bench"}),
        ("closelook.jobs.products.pruning", {"pruning"}),
        ("closelook.jobs.products.controls.randomisation", {"randomisation"}),
        ("closelook.jobs.products.controls.shapley", {"shapley"}),
        ("closelook.evaluation.scoring.metrics", {"scores", "layer_scores"}),
    ],
)
def test_a_new_version_of_a_product_makes_it_and_all_that_is_made_of_it_stale(module, names, keys, monkeypatch):
    before = keys()
    module, _, version = module.partition(":")
    monkeypatch.setattr(import_module(module), version or "VERSION", 99)
    assert changed(before, keys()) == all_of(names, before)
