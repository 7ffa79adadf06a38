"""Relevance that is made of ablations, against independent solutions."""

import sys

import numpy as np
import pytest

from closelook.evaluation.ablations.methods import METHODS
from closelook.evaluation.ablations.units import ALPHA, of_units
from closelook.jobs.methods import METHODS as EVERY
from closelook.lrp_core import UserError
from closelook.lrp_core.records.ablated import Ablated, leave_one_out, odds_of
from closelook.lrp_core.records.types import UnsupportedMethod
from tests.oracles import sources as oracles
from tests.tiny import tiny_model

pytestmark = pytest.mark.numeric


def ablated(units=10, fit=128, tokens=3, seed=0, **sets):
    """Ablations of a sample whose log-odds are a game of its units, with interactions."""
    rng = np.random.default_rng(seed)
    kept = np.concatenate([np.ones((1, units), bool), ~np.eye(units, dtype=bool), rng.random((fit, units)) < 0.5])
    single, pairs = rng.normal(size=(units, tokens)), rng.normal(size=(units, units, tokens))
    both = np.einsum("mi,mj,ijg->mg", kept, kept, pairs)
    log_odds = kept @ single + 0.3 * both - 1
    fitted = np.arange(1 + units, len(kept))
    return Ablated(kept, log_odds * 2 + 1, log_odds, 0, np.arange(1, 1 + units), fit=fitted, **sets)


@pytest.mark.parametrize(("budget", "seed"), [(32, 0), (64, 1), (128, 2), (12, 3)])
def test_contextcites_weights_are_those_of_an_independent_lasso(budget, seed):
    ablations = ablated(seed=seed)
    weights = METHODS["contextcite"].configured(budget=budget).of_units(ablations)
    masks = ablations.fit[:budget]
    odds = np.array([oracles.answer_odds(ablations.log_odds[mask]) for mask in masks])
    expected = oracles.lasso(ablations.kept[masks], odds / 3, ALPHA) * 3
    np.testing.assert_allclose(weights.values["none"], expected, atol=1e-4)
    assert weights.prompts == budget
    assert (expected != 0).any()


def test_a_unit_that_stays_in_every_mask_gets_no_weight():
    ablations = ablated(fit=32)
    ablations.kept[ablations.fit, 3] = True
    assert METHODS["contextcite"].of_units(ablations).values["none"][3] == 0.0


def test_contextcite_without_scikit_learn_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.linear_model", None)
    with pytest.raises(UserError, match=r"scikit-learn, which is not installed: pip install 'closelook\[run\]'"):
        METHODS["contextcite"].of_units(ablated())


def test_leave_one_out_is_the_drop_of_log_odds_without_each_unit():
    ablations = ablated()
    odds = [oracles.answer_odds(values) for values in ablations.log_odds[: 1 + ablations.units]]
    np.testing.assert_allclose(leave_one_out(ablations).values["none"], odds[0] - np.array(odds[1:]), atol=1e-12)


def test_kernel_shap_of_units_is_exact_where_all_sets_are_run():
    units = 5
    kept = oracles.every_mask(units)
    rng = np.random.default_rng(0)
    log_odds = kept @ rng.normal(size=(units, 2)) + np.einsum("mi,mj,ijg->mg", kept, kept, rng.normal(size=(5, 5, 2)))
    index = {mask.tobytes(): at for at, mask in enumerate(kept)}
    from closelook.lrp_core.methods.kernel_shap import pairs_of

    pairs, weights = (value.numpy() for value in pairs_of(units, 2**units, 0))
    sets = np.concatenate([np.zeros((1, units), bool), pairs, ~pairs])
    shapley = np.array([index[mask.tobytes()] for mask in sets])
    full, without = len(kept) - 1, np.array([index[mask.tobytes()] for mask in ~np.eye(units, dtype=bool)])
    ablations = Ablated(kept, 2 * log_odds, log_odds, full, without, shapley=shapley, shapley_weights=weights)
    relevance = EVERY["kernel_shap"].configured(units=True).of_units(ablations)
    for explanation, worth in (("target", ablations.summed_logits), ("log_prob", ablations.log_probability)):

        def worth_of(some, worth=worth):
            return worth[index[np.isin(np.arange(units), list(some)).tobytes()]]

        np.testing.assert_allclose(relevance.values[explanation], oracles.shapley(worth_of, units), atol=1e-9)
    assert relevance.prompts == 1 + len(sets)


def test_kernel_shap_of_units_needs_sets_that_were_run():
    with pytest.raises(UserError, match=r"set `ablations\.shapley`"):
        EVERY["kernel_shap"].configured(units=True).of_units(ablated())


@pytest.mark.parametrize("name", ["contextcite", "leave_one_out"])
def test_methods_made_of_ablations_say_nothing_of_tokens(name):
    from closelook.lrp_core import Batch

    view = tiny_model("gpt2")
    batch = Batch.collate([{"input_ids": [5, 6, 7], "position": 2, "target_id": 3}], view.pad_id)
    with pytest.raises(
        UnsupportedMethod, match="gives no relevance of tokens: it is computed from the `ablations` of a run"
    ):
        EVERY[name](view, batch)


def test_relevance_of_a_unit_is_the_sum_the_mean_or_the_largest_of_its_tokens():
    tokens, units = np.array([1.0, -3.0, 4.0, 9.0, 2.0]), np.array([0, 0, 1, -1, 1])
    assert of_units(tokens, units, 2).tolist() == [-2.0, 6.0]
    assert of_units(tokens, units, 2, "mean").tolist() == [-1.0, 3.0]
    assert of_units(tokens, units, 2, "max").tolist() == [1.0, 4.0]


@pytest.mark.parametrize(
    "log_odds",
    [[800.0, 900.0], [40.0, 41.0], [745.0, 800.0], [3.0, -2.0], [-30.0, -40.0], [0.5], [20.0, 700.0], [-700.0]],
)
def test_an_answers_log_odds_hold_where_probabilities_underflow(log_odds):
    by_mask = np.array([log_odds])
    log_probability = -np.logaddexp(0, -by_mask).sum(axis=1)
    assert odds_of(log_probability, by_mask)[0] == pytest.approx(oracles.answer_odds(log_odds), rel=1e-12)
    assert log_probability[0] == pytest.approx(oracles.log_probability(log_odds), rel=1e-12)
