"""LDS and infidelity on games of units that interact, against all masks by slow loops."""

import numpy as np
import pytest

from closelook.evaluation.ablations.claims import infidelity, lds, most_relevant
from tests.oracles import sources as oracles

pytestmark = pytest.mark.numeric
PAIR = np.array([2.0, 1.0, -0.5, 0.25])


def interaction(kept):
    """A game of four units: two substitute each other, two others only count together."""
    a, b, c, d = kept.T.astype(float)
    return 2.0 * np.maximum(a, b) + 1.5 * c * d - 0.7 * a + 0.1 * b - 5


MASKS = oracles.every_mask(4)
WORTH = interaction(MASKS)
FULL = float(interaction(np.ones((1, 4), bool))[0])


@pytest.mark.parametrize("relevance", [PAIR, -PAIR, np.array([1.0, 1.0, 1.0, 1.0]), np.array([0.0, 3.0, 0.0, 1e-6])])
def test_lds_is_the_rank_correlation_over_all_masks_of_an_interaction_game(relevance):
    assert lds(relevance, MASKS, WORTH) == pytest.approx(oracles.lds(relevance, MASKS, WORTH), abs=1e-12)


@pytest.mark.parametrize("relevance", [PAIR, np.array([1.0, 1.0, 1.0, 1.0]), np.array([0.0, 3.0, 0.0, 1.0])])
def test_infidelity_is_the_least_error_over_all_masks_of_an_interaction_game(relevance):
    expected = oracles.infidelity(relevance, MASKS, WORTH, FULL)
    assert infidelity(relevance, MASKS, WORTH, FULL) == pytest.approx(expected, abs=1e-7)


def test_an_additive_game_is_told_wholly_whatever_the_scale():
    worth = MASKS @ PAIR
    assert lds(7 * PAIR, MASKS, worth) == pytest.approx(1.0)
    assert infidelity(7 * PAIR, MASKS, worth, float(PAIR.sum())) == pytest.approx(0.0, abs=1e-15)


def test_reversed_relevance_is_not_rewarded():
    worth = MASKS @ PAIR
    assert lds(-PAIR, MASKS, worth) == pytest.approx(-1.0)
    assert infidelity(-PAIR, MASKS, worth, float(PAIR.sum())) == 1.0, "b is never negative"


def test_relevance_that_says_the_same_of_all_masks_has_an_lds_of_zero_and_an_infidelity_of_one():
    assert lds(np.zeros(4), MASKS, WORTH) == 0.0
    assert infidelity(np.zeros(4), MASKS, WORTH, FULL) == 1.0


def test_sums_that_differ_by_rounding_alone_are_equal():
    relevance = np.array([0.1, 0.2, -0.3, 0.0])  # all three: 5.6e-17, none: 0
    kept = np.array([[1, 1, 1, 0], [0, 0, 0, 0], [1, 1, 1, 1]], bool)
    assert lds(relevance, kept, np.array([2.0, 1.0, 3.0])) == 0.0


def test_an_answer_that_never_changes_has_no_numbers():
    constant = np.full(len(MASKS), -3.0)
    assert np.isnan(lds(PAIR, MASKS, constant))
    assert np.isnan(infidelity(PAIR, MASKS, constant, -3.0))


def test_lds_of_fewer_than_four_units_is_not_defined_and_infidelity_is():
    masks = oracles.every_mask(3)
    worth = masks @ np.array([1.0, 2.0, 3.0])
    assert np.isnan(lds(np.array([1.0, 2.0, 3.0]), masks, worth))
    assert infidelity(np.array([1.0, 2.0, 3.0]), masks, worth, 6.0) == 0.0


def test_ties_for_the_most_relevant_units_go_by_the_samples_own_order():
    relevance, ties = np.array([1.0, 0.0, 0.0, 0.0]), np.array([3, 2, 0, 1])
    assert most_relevant(relevance, 2, ties).tolist() == [False, True, False, True]
    assert most_relevant(relevance, 3, ties).tolist() == [False, True, False, False]
