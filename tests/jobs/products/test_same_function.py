"""Rewritten models and exact Shapley values: numbers are those of slow sums, and what must not move does not."""

from itertools import permutations

import numpy as np
import pytest
import torch
from scipy import stats

from closelook.evaluation.schema import REWRITTEN, SHAPLEY
from closelook.evaluation.scoring.controls import error_after_scaling
from closelook.jobs.methods import METHODS
from closelook.jobs.plan.cells import make_plan
from closelook.jobs.plan.node import Run
from closelook.jobs.products.controls import rewritten, shapley
from closelook.jobs.store import Ledger
from closelook.lrp_core import Batch, load_model
from closelook.lrp_core.interventions import rewritten as changes
from closelook.lrp_core.methods.kernel_shap import _all_pairs, shapley_values
from tests.jobs.inline import without_ray
from tests.jobs.small import config_of, prepared, rows_of
from tests.stages import controls
from tests.tiny import ragged_rows, tiny_model

METHODS_OF_RUN = ["attnlrp", "gradient_x_input", "occlusion"]
LONG = {"input_ids": list(range(1, 13)), "length": 12, "position": 11, "evidence_mask": [True] * 12}
LONG |= {"special_mask": [False] * 12}
SHORT = [row for row in rows_of(20) if 5 <= row["length"] <= 6]  # 6 tokens have 720 orders
#: Two samples with a foil, one without, and a text that is too long to be enumerated.
ROWS = [*SHORT[:2], {**SHORT[2], "foil_id": None}, {**SHORT[3], **LONG}]


@pytest.fixture(scope="module")
def run(tmp_path_factory, model):
    """The run, and the rows of a product by method."""
    config = config_of(
        tmp_path_factory.mktemp("run"), model, methods=METHODS_OF_RUN, controls={"explanation": "target"}
    )
    store = prepared(config, ROWS)
    with without_ray():
        assert controls(config, store).failures == ()
    run = Run(config, make_plan(config, store), Ledger(store))

    def read(product, schema):
        return {node.artifact.method: run.ledger.read(node.artifact, schema).to_pylist() for node in product.nodes(run)}

    return run, read


def relevance(view, method, row):
    batch = Batch.collate([{**row, "foil_id": None}], pad_id=0)
    explanation = "none" if method == "value_zeroing" else "target"
    return METHODS[method](view, batch, explanation=explanation).tokens[0].double().numpy()


def worth(view, row, present):
    """The target's logit where the tokens that are not `present` have zero embeddings."""
    batch = Batch.collate([{**row, "foil_id": None}], pad_id=0)
    with torch.no_grad():
        embeddings = view.model.get_input_embeddings()(batch.input_ids)
        embeddings = embeddings * torch.tensor(present)[None, :, None]
        return float(view.model(inputs_embeds=embeddings).logits[0, row["position"], row["target_id"]])


def test_short_texts_are_held_against_the_mean_gain_over_all_orders(run, model):
    _, read = run
    entries = read(shapley, SHAPLEY)
    view = load_model(model)
    for row in ROWS[:3]:
        tokens = row["length"]
        gains = np.zeros(tokens)
        worths = {}
        orders = list(permutations(range(tokens)))
        for order in orders:
            present = [0.0] * tokens
            before = worths.setdefault(tuple(present), None) or worth(view, row, present)
            worths[tuple(present)] = before
            for token in order:
                present[token] = 1.0
                after = worths.get(tuple(present)) or worth(view, row, present)
                worths[tuple(present)] = after
                gains[token] += after - before
                before = after
        exact = gains / len(orders)
        for method in METHODS_OF_RUN:
            (entry,) = (entry for entry in entries[method] if entry["sample_id"] == row["sample_id"])
            values = relevance(view, method, row)
            b = max(0.0, (values * exact).sum() / (values * values).sum())
            assert entry["correlation"] == pytest.approx(stats.spearmanr(values, exact).statistic, abs=1e-6)
            assert entry["error"] == pytest.approx(((b * values - exact) ** 2).sum() / (exact**2).sum(), abs=1e-4)
            assert (entry["game"], entry["tokens"]) == ("target", tokens)
    samples = {row["sample_id"] for row in ROWS[:3]}
    assert {entry["sample_id"] for entry in entries["attnlrp"]} == samples, "the long text is left out"


def test_enumeration_shares_out_interactions_and_what_they_alone_earn():
    """Players 0 and 1 earn 6 together and nothing alone; player 2 earns 1 by itself; player 3 earns nothing."""

    def game(present):
        return 6.0 * (present[0] and present[1]) + 1.0 * present[2]

    pairs, weights = _all_pairs(4)
    sets = [[False] * 4, *pairs.tolist(), *(~pairs).tolist()]
    worths = torch.tensor([[game(present)] for present in sets], dtype=torch.float64)
    values = shapley_values(pairs, weights, worths, torch.tensor([7.0], dtype=torch.float64))[:, 0]
    assert values.tolist() == pytest.approx([3, 3, 1, 0], abs=1e-9)
    additive = np.array([0.0, 0.0, 1.0, 0.0])  # what a method that sees no interaction says
    assert error_after_scaling(additive, values.numpy()) == pytest.approx(18 / 19)


def test_changes_are_those_of_the_rewritten_models(run, model):
    made, read = run
    entries = read(rewritten, REWRITTEN)
    view = load_model(model)
    names = set()
    trained = [(method, row, relevance(view, method, row)) for method in METHODS_OF_RUN for row in ROWS]
    with changes.rewritten(view, made.config.seed) as models:
        for name, changed in models:
            names.add(name)
            for method, row, before in trained:
                key = (row["sample_id"], name)
                (entry,) = (e for e in entries[method] if (e["sample_id"], e["rewriting"]) == key)
                change = abs(relevance(changed, method, row) - before).max() / abs(before).max()
                assert entry["change"] == pytest.approx(change, abs=1e-5)
                assert entry["logit_change"] < 1e-5
    assert names == {"heads permuted", "neurons permuted", "norms folded", "values rotated"}, "GELU is not homogeneous"


@pytest.mark.parametrize("family", ["gpt2", "llama", "opt"])
def test_explanations_of_the_function_stay_and_those_of_parts_move(family):
    """Occlusion sees the function alone; AttnLRP passes by parts whose order plays no part."""
    view = tiny_model(family)
    row = ragged_rows(view)[0]
    moved = {}
    for method in ("occlusion", "attnlrp", "gradient_x_input", "value_zeroing"):
        before = relevance(view, method, row)
        with changes.rewritten(view, 0) as models:
            for name, changed in models:
                moved[method, name] = abs(relevance(changed, method, row) - before).max() / abs(before).max()
    rewritings = {name for _, name in moved}
    assert ("neurons rescaled" in rewritings) == (family != "gpt2")
    for method in ("occlusion", "gradient_x_input"):
        assert max(moved[method, name] for name in rewritings) < 1e-3, moved
    for name in ("heads permuted", "neurons permuted"):
        assert max(moved[method, name] for method in ("attnlrp", "value_zeroing")) < 1e-3, moved


def test_a_rewriting_that_changes_the_function_is_refused(tmp_path, model, inline, monkeypatch):
    def broken(block, generator):
        block.output.weight.mul_(5.0)

    monkeypatch.setitem(changes.REWRITINGS, "neurons permuted", (lambda block: True, broken))
    config = config_of(tmp_path, model, methods=["lrp"], controls={"explanation": "target"})
    store = prepared(config, SHORT[:3])
    summary = controls(config, store)
    failures = [line for line in summary.failures if "rewritten" in line]
    assert failures
    run = Run(config, make_plan(config, store), Ledger(store))
    assert not any(run.ledger.is_done(node.artifact) for node in rewritten.nodes(run))
