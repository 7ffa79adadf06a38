"""Pearson's r over shares."""

import numpy as np
import pytest

from closelook.evaluation.scoring.faithfulness.shares import pearson
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


def test_correlations_of_doubled_samples_in_clusters_are_those_of_single_ones():
    rng = np.random.default_rng(5)
    gold = rng.normal(size=40)
    predictions = gold[:, None] + 0.3 * rng.normal(size=(40, 3))
    twice, drawn = np.repeat(np.arange(40), 2), Resampling(400)
    single = pearson(predictions, gold, drawn).summary
    doubled = pearson(predictions[twice], gold[twice], drawn.within(twice)).summary
    assert doubled.low == pytest.approx(single.low)
    assert pearson(predictions[twice], gold[twice], drawn).summary.low > single.low + 0.005
