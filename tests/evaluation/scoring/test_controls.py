"""Correlations of maps, and what is passed or failed by them."""

import numpy as np
import pytest
from scipy import stats

from closelook.evaluation.scoring.controls import (
    BAR,
    RESAMPLING,
    agreement,
    chance_verdict,
    mean_verdict,
    randomisation_verdict,
)


def test_agreement_is_spearmans_correlation_of_values_and_of_absolute_values():
    rng = np.random.default_rng(0)
    for _ in range(20):
        first, other = rng.normal(size=(2, 9)).round(1)  # with ties
        correlations = agreement(first, other)
        assert correlations.signed == pytest.approx(stats.spearmanr(first, other).statistic)
        assert correlations.absolute == pytest.approx(stats.spearmanr(abs(first), abs(other)).statistic)
        assert not correlations.flat


def test_a_flat_map_counts_as_unchanged_and_is_marked():
    flat, varied = np.full(4, 0.3), np.array([1.0, -2, 3, 0])
    for first, other in ((flat, varied), (varied, flat), (flat, flat), (flat, flat * (1 + 1e-12 * varied))):
        correlations = agreement(first, other)
        assert (correlations.signed, correlations.absolute, correlations.flat) == (1.0, 1.0, True)


def test_the_absolute_values_of_a_map_may_be_flat_where_it_is_not():
    correlations = agreement(np.array([1.0, -1, 1]), np.array([1.0, 2, 3]))
    assert correlations.absolute == 1.0
    assert correlations.signed == pytest.approx(0)
    assert not correlations.flat


@pytest.mark.parametrize("other", [[1.0, np.nan], [np.inf, 0.0]])
def test_what_is_not_finite_or_a_single_token_has_no_agreement(other):
    assert agreement(np.array([1.0, 2.0]), np.array(other)).signed is None
    assert agreement(np.array([1.0]), np.array([2.0])).signed is None


def verdict_on(correlations, flat=False):
    return randomisation_verdict(correlations, [flat] * len(correlations))


def test_a_method_fails_only_where_its_interval_lies_above_the_bar():
    spread = np.random.default_rng(1).normal(scale=0.3, size=40)
    spread -= spread.mean()
    half = mean_verdict(spread).high
    assert verdict_on(spread + BAR + 2 * half).passed is False
    assert verdict_on(spread + BAR + half / 2).passed is True
    assert verdict_on(spread - 0.6).passed is True
    assert verdict_on([*[0.8, 0.9] * 6, None]).n == 12
    assert verdict_on([None, None]).passed is None


def test_flat_maps_fail_however_few_and_others_need_ten_samples():
    assert verdict_on([1.0] * 3, flat=True).passed is False
    assert verdict_on([1.0] * 9).passed is None
    assert verdict_on([1.0] * 10).passed is False
    assert randomisation_verdict([1.0] + [0.0, 0.1] * 6, [True] + [False] * 12).passed is True


def test_random_maps_lie_in_the_interval_of_chance_and_kept_maps_do_not():
    rng = np.random.default_rng(2)
    tokens = rng.integers(2, 12, 30)
    inside = 0
    for _ in range(100):
        maps = [rng.normal(size=(2, count)) for count in tokens]
        inside += chance_verdict([agreement(*pair).signed for pair in maps], tokens).passed
    assert inside >= 99  # 99.9 % of them
    assert chance_verdict([1.0] * 30, tokens).passed is False
    assert chance_verdict([0.3] * 30, [9] * 30).passed is False
    assert chance_verdict([None], [3]).passed is None


def test_the_interval_of_chance_is_that_of_spearmans_variance():
    verdict = chance_verdict([0.0, None, 0.1], [5, 7, 9])
    assert verdict.n == 2
    assert verdict.high == pytest.approx(stats.norm.ppf(0.9995) * np.sqrt(1 / 4 + 1 / 8) / 2, rel=1e-4)
    assert verdict.low == -verdict.high


def test_a_description_asks_nothing():
    assert mean_verdict([0.1, None, 0.3]).passed is None
    assert mean_verdict([0.1, None, 0.3]).value == pytest.approx(0.2)
    assert np.isnan(mean_verdict([]).value)


def test_intervals_count_clusters_and_few_of_them_say_nothing():
    spread = [0.05, 0.9, 0.4, 0.6] * 10
    clusters = np.repeat(np.arange(20), 2)
    twice = [value for value in spread for _ in range(2)]
    alone, together = mean_verdict(spread), mean_verdict(twice, RESAMPLING.within(np.repeat(np.arange(40), 2)))
    assert (together.low, together.high) == pytest.approx((alone.low, alone.high), abs=0.01)
    assert mean_verdict(twice).high < together.high
    assert randomisation_verdict(spread, [False] * 40, RESAMPLING.within(clusters)).passed is False
    few = randomisation_verdict(spread, [False] * 40, RESAMPLING.within(clusters % 9))
    assert few.passed is None
    assert np.isnan(few.low)
