"""Pearson's r over shares, and methods compared by it."""

from itertools import combinations, product

import numpy as np
import pytest

from closelook.evaluation.scoring.faithfulness.shares import paired_correlations, pearson
from closelook.evaluation.scoring.intervals import Resampling
from tests.oracles import faithfulness as oracle


def test_pearson_is_the_mean_correlation_over_shares():
    rng = np.random.default_rng(1)
    gold = rng.random(200) * 5
    predictions = 1e6 + gold[:, None] * np.array([1.0, -0.5]) + rng.normal(size=(200, 2))
    expected = np.mean([oracle.pearson(predictions[:, k].tolist(), gold.tolist()) for k in (0, 1)])
    measured = pearson(predictions, gold, Resampling(400)).summary
    assert (measured.value, measured.n) == (pytest.approx(expected, abs=1e-9), 200)
    assert measured.low < measured.value < measured.high
    assert measured.high - measured.low < 0.3
    gaps = predictions.copy()
    gaps[7, 1] = np.nan
    assert (pearson(gaps, gold, Resampling(400)).n, pearson(gaps, gold, Resampling(400)).left_out) == (199, 1)


def test_without_resamples_there_is_a_value_and_no_interval():
    rng = np.random.default_rng(6)
    gold = rng.random(30)
    measured = pearson(gold[:, None] + rng.normal(size=(30, 2)), gold, Resampling(0)).summary
    assert np.isfinite(measured.value)
    assert np.isnan([measured.low, measured.high]).all()


def test_predictions_that_do_not_vary_have_no_correlation():
    gold = np.random.default_rng(2).random(30)
    measured = pearson(np.full((30, 1), 0.1), gold, Resampling(50)).summary
    assert np.isnan([measured.value, measured.low, measured.high]).all()
    assert pearson(np.zeros((1, 1)), gold[:1], Resampling(50)).n == 1


def mean_r(predictions, gold):
    """Of `predictions` [N, K]."""
    return np.mean([oracle.pearson(column.tolist(), gold.tolist()) for column in predictions.T])


def test_methods_differ_as_often_under_swaps_as_all_swaps_tell():
    """p against the enumeration of every way to swap what is said under two methods of 8 samples."""
    rng = np.random.default_rng(3)
    gold = rng.random(8)
    predictions = 50 + rng.normal(size=(8, 3, 1, 2))
    predictions[:, 0] += 2 * gold[:, None, None]
    compared = paired_correlations(predictions, gold, ("a", "b", "c"), ("pearson",), Resampling(2000))
    assert compared.n == 8
    exact = {}
    for a, b in combinations(range(3), 2):
        pair = predictions[:, [a, b], 0]  # [8, 2, 2]
        differences = []
        for swaps in product((False, True), repeat=8):
            mixed = np.where(np.array(swaps)[:, None, None], pair[:, ::-1], pair)
            differences.append(abs(mean_r(mixed[:, 0], gold) - mean_r(mixed[:, 1], gold)))
        exact[a, b] = np.mean(np.array(differences) >= differences[0] - 1e-9)
        assert compared.mean[a, 0] == pytest.approx(mean_r(pair[:, 0], gold))
    adjusted = dict(zip(sorted(exact, key=exact.get), (3, 2, 1), strict=True))
    stepped = 0.0
    for pair in sorted(exact, key=exact.get):  # Holm
        stepped = max(stepped, min(1.0, adjusted[pair] * exact[pair]))
        assert compared.p[(*pair, 0)] == compared.p[(*pair[::-1], 0)] == pytest.approx(stepped, abs=0.03)


def test_a_method_that_keeps_the_score_is_told_from_one_that_does_not():
    rng = np.random.default_rng(4)
    gold = rng.random(80) * 5
    predictions = rng.normal(size=(80, 4, 2, 3))
    predictions[:, 0, 1] += 3 * gold[:, None]
    predictions[:, 2] = 0.1
    predictions[5, 1, 0, 0] = np.nan
    predictions[:, 3] = np.nan
    measures = ("pearson", "sufficiency_pearson")
    compared = paired_correlations(predictions, gold, ("good", "bad", "still", "broken"), measures, Resampling(200))
    assert (compared.methods, compared.n) == (("good", "bad", "still"), 79)
    assert compared.p[0, 1, 1] < 0.01 < 0.05 < compared.p[0, 1, 0]
    low, high = compared.difference_low[0, 1, 1], compared.difference_high[0, 1, 1]
    assert 0.5 < low < compared.mean[0, 1] - compared.mean[1, 1] < high
    assert compared.difference_low[1, 0, 1] == pytest.approx(-high)
    assert np.isnan(compared.mean[2]).all()
    assert (compared.p[2] == 1).all()
    nothing = np.full((4, 2, 1, 1), np.nan)
    assert paired_correlations(nothing, gold[:4], ("a", "b"), ("pearson",), Resampling(200)) is None
    assert paired_correlations(predictions[:1], gold[:1], ("a",) * 4, measures, Resampling(200)) is None


def test_correlations_of_doubled_samples_in_clusters_are_those_of_single_ones():
    rng = np.random.default_rng(5)
    gold = rng.normal(size=40)
    predictions = gold[:, None, None, None] + rng.normal(size=(40, 2, 1, 3)) * np.array([0.3, 1.5])[None, :, None, None]
    twice, of = np.repeat(np.arange(40), 2), np.repeat(np.arange(40), 2)
    names, drawn = (("a", "b"), ("r",)), Resampling(400)
    alone = paired_correlations(predictions, gold, *names, drawn)
    together = paired_correlations(predictions[twice], gold[twice], *names, drawn.within(of))
    for field in ("mean", "low", "high", "difference_low", "difference_high", "p"):
        np.testing.assert_allclose(getattr(together, field), getattr(alone, field), atol=1e-9)
    assert paired_correlations(predictions[twice], gold[twice], *names, drawn).low[1, 0] > together.low[1, 0] + 0.02
    few = paired_correlations(predictions, gold, *names, drawn.within(np.arange(40) % 5))
    assert (few.p == 1).all()
    assert np.isnan(few.low).all()
    single = pearson(predictions[:, 0, 0], gold, drawn).summary
    doubled = pearson(predictions[twice][:, 0, 0], gold[twice], drawn.within(of)).summary
    assert doubled.low == pytest.approx(single.low)
