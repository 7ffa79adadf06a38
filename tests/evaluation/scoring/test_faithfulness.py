"""Areas, shares, means over samples."""

import numpy as np
import pyarrow as pa
import pytest

from closelook.evaluation.scoring.faithfulness.flips import (
    SHARE_ORDERS,
    SHARES,
    Ranking,
    States,
    flip_counts,
    share_counts,
)
from closelook.evaluation.scoring.faithfulness.scores import (
    MEASURES,
    areas,
    share_scores,
    summarise,
    with_gaps,
)
from closelook.evaluation.scoring.faithfulness.shares import shares_of
from closelook.evaluation.scoring.intervals import Resampling
from tests.oracles import faithfulness as oracle

pytestmark = pytest.mark.numeric
RELEVANCE = np.array([[1.0, 1.0, -2.0, 0.5, 1.0, 0.0, -2.0, 0.0], [0.0] * 8, [3.0, 2.0, 1.0, 9.0, 8.0, 7.0, 6.0, 5.0]])
TIES = np.array([3, 1, 0, 2, 7, 6, 5, 4])
EVERYTHING = np.ones(8, bool)


def game(gone):
    """A number of a set of tokens that is gone, without any structure, exact in floating point."""
    return float(hash(tuple(sorted(gone))) % 1024)


def evaluated(f, removed):
    """f of each state [..., T]."""
    return np.apply_along_axis(lambda state: f(frozenset(np.flatnonzero(state).tolist())), -1, removed)


def test_areas_are_those_of_flipping_one_token_at_a_time_and_of_insertion_and_differ_by_equation_31():
    counts = flip_counts(8, 100)  # eighths, so that nothing is rounded
    measured = areas(evaluated(game, Ranking.of(RELEVANCE, EVERYTHING, TIES).curves(counts)), counts)
    for i, values in enumerate(RELEVANCE.tolist()):
        most, least = (order(values, TIES, EVERYTHING) for order in (oracle.morf, oracle.lerf))
        assert measured["area_morf"][i] == oracle.area(oracle.flipping(game, most))
        assert measured["area_lerf"][i] == oracle.area(oracle.flipping(game, least))
        assert measured["area_morf"][i] == oracle.area(oracle.insertion(game, least))
        assert measured["area_lerf"][i] == oracle.area(oracle.insertion(game, most))
        assert measured["delta_area"][i] == oracle.equation_31(game, values, TIES, EVERYTHING)


def test_uneven_steps_weigh_by_how_far_they_go():
    counts = flip_counts(7, 3)
    assert counts.tolist() == [0, 2, 5, 7]
    straight = np.array([[7.0, 5.0, 2.0, 0.0], [0.0, 2.0, 5.0, 7.0]])
    assert areas(straight, counts)["area_morf"] == pytest.approx(3.5)
    assert areas(straight, counts)["delta_area"] == pytest.approx(0.0)


def test_a_curve_of_one_token_has_an_area():
    assert areas(np.array([[2.0, 1.0], [2.0, 1.0]]), flip_counts(1, 9)) == {
        "area_morf": 1.5,
        "area_lerf": 1.5,
        "delta_area": 0.0,
    }


def test_what_top_shares_lose_and_keep_is_that_of_the_formulas():
    probability = lambda gone: game(gone) / 1024  # noqa: E731
    removed = Ranking.of(RELEVANCE, EVERYTHING, TIES).shares(share_counts(8))
    values = evaluated(probability, removed)
    correct = (values > 0.5).astype(float)
    scores = share_scores(values, correct, probability(frozenset()))
    for i, relevance in enumerate(RELEVANCE.tolist()):
        order = oracle.morf(relevance, TIES, EVERYTHING)
        assert scores["aopc"][i].mean() == pytest.approx(oracle.aopc(probability, order, SHARES))
        assert scores["sufficiency"][i].mean() == pytest.approx(oracle.sufficiency(probability, order, SHARES))
        right = oracle.aopc(lambda gone: -float(probability(gone) > 0.5), order, SHARES)  # from what is right whole
        assert scores["accuracy"][i].mean() - (probability(frozenset()) > 0.5) == pytest.approx(right)
    np.testing.assert_array_equal(scores["sufficiency_accuracy"], correct[:, 1])


def test_outputs_that_are_not_numbers_make_no_accuracy_either():
    scores = share_scores(np.array([[np.nan, 0.5], [0.5, 0.5]]), np.ones((2, 2)), 0.75)
    assert np.isnan(scores["accuracy"]).tolist() == [True, False]
    lost = share_scores(np.full((2, 2), 0.5), np.ones((2, 2)), np.nan)
    assert all(np.isnan(values).all() for values in lost.values())


def test_a_summary_counts_what_it_leaves_out():
    measured = summarise(np.array([1.0, np.nan, 3.0, np.inf, 2.0]), Resampling(500))
    assert (measured.value, measured.n, measured.left_out) == (2.0, 3, 2)
    assert -np.inf < measured.low < 2.0 < measured.high < np.inf
    nothing = summarise(np.full(3, np.nan), Resampling(500))
    assert (nothing.n, nothing.left_out) == (0, 3)
    assert np.isnan([nothing.value, nothing.low, nothing.high]).all()


def test_an_interval_of_lost_probability_ends_at_what_can_be_lost():
    rows = []
    for sample, left in (("a", 0.0), ("b", 0.9), ("c", 0.0)):
        key = {"sample_id": sample, "explanation": "target", "embedding": "partial", "perturbation": "mask"}
        for order in SHARE_ORDERS:
            numbers = {"logit": [0.0] * 10, "probability": [1.0] + [left] * 9, "correct": [1.0] * 10}
            rows.append(key | {"order": order, "score": "target"} | numbers)
    measured = shares_of({"lrp": pa.Table.from_pylist(rows)}, {}, "mask", Resampling(50))
    lost = measured.summaries["lrp", "aopc"]
    assert lost.value == pytest.approx(0.7)
    assert -1 <= lost.low < lost.value < lost.high <= 1
    assert measured.curves["lrp", "aopc"].high.max() <= 1


def test_variants_without_an_order_are_gaps_in_the_results():
    relevance = RELEVANCE.copy()
    relevance[1, 0] = np.nan
    ranking, counts = Ranking.of(relevance, EVERYTHING, TIES), flip_counts(8, 100)
    states = States.of(ranking.curves(counts)[ranking.finite])
    values = evaluated(game, states.removed)[states.points]
    measured = areas(with_gaps(values, ranking.finite), counts)["delta_area"]
    whole = areas(evaluated(game, Ranking.of(RELEVANCE, EVERYTHING, TIES).curves(counts)), counts)["delta_area"]
    np.testing.assert_array_equal(measured[[0, 2]], whole[[0, 2]])
    assert np.isnan(measured[1])


def test_every_measure_prefers_an_order_by_what_tokens_are_worth_to_the_reverse():
    worth = np.array([0.3, 0.05, 0.2, 0.02, 0.13, 0.1, 0.01, 0.19])  # of the probability, which is their sum
    ranking, counts = Ranking.of(np.stack([worth, -worth]), EVERYTHING, TIES), flip_counts(8, 100)
    curves = (~ranking.curves(counts)) @ worth
    tops = (~ranking.shares(share_counts(8))) @ worth
    scores = areas(curves, counts) | share_scores(tops, tops > 0.5, worth.sum())
    for name, values in scores.items():
        good, bad = values.reshape(2, -1).mean(axis=1)
        assert (good > bad) == MEASURES[name].higher_is_better, name
        assert good != bad
    assert MEASURES.keys() == {*scores, "pearson", "sufficiency_pearson"}
