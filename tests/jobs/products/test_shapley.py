"""Exact Shapley values: numbers are those of slow sums over all orders."""

from itertools import permutations

import numpy as np
import pytest
import torch
from scipy import stats

from closelook.evaluation.schema import SHAPLEY
from closelook.evaluation.scoring.controls import error_after_scaling
from closelook.jobs.methods import METHODS
from closelook.jobs.plan.cells import make_plan
from closelook.jobs.plan.node import Run
from closelook.jobs.products.controls import shapley
from closelook.jobs.store import Ledger
from closelook.lrp_core import Batch, load_model
from closelook.lrp_core.methods.kernel_shap import _all_pairs, shapley_values
from tests.jobs.inline import without_ray
from tests.jobs.small import config_of, prepared, rows_of
from tests.stages import controls

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
    return METHODS[method](view, batch, explanation="target").tokens[0].double().numpy()


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
