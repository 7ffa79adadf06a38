"""Intervals cover, tests keep their level, and chunks change nothing."""

import itertools

import numpy as np
import pytest

from closelook.evaluation.scoring import intervals, statistics
from closelook.evaluation.scoring.intervals import Resampling
from closelook.evaluation.scoring.statistics import (
    SURE,
    bootstrap_means,
    compare,
    hits_p,
    holm_adjusted,
    interval,
    sign_flip_p,
    stars,
)


def test_bootstrap_interval_is_the_textbook_one_for_a_mean():
    values = np.random.default_rng(0).random((400, 1))
    low, high = interval(bootstrap_means(values, Resampling(4000)))
    error = 1.96 * values.std() / 20
    assert (low[0], high[0]) == pytest.approx((values.mean() - error, values.mean() + error), abs=error / 8)


def test_a_constant_has_an_interval_without_width():
    low, high = interval(bootstrap_means(np.full((7, 1), 0.25), Resampling(50)))
    assert low[0] == high[0] == 0.25


def test_p_of_one_pair_is_the_share_of_all_sign_patterns():
    values = np.random.default_rng(1).random((8, 2))
    difference = values[:, 0] - values[:, 1]
    sums = [abs(np.dot(signs, difference)) for signs in itertools.product((-1, 1), repeat=8)]
    exact = np.mean([total >= abs(difference.sum()) - 1e-12 for total in sums])
    measured = sign_flip_p(values, seed=0)
    assert measured[0, 1] == measured[1, 0] == pytest.approx(exact)


def test_random_signs_agree_with_all_patterns(monkeypatch):
    values = np.random.default_rng(1).random((12, 3))
    exact = sign_flip_p(values, seed=0)
    monkeypatch.setattr(statistics, "FLIPS", 2**12 - 2)  # one pattern less than all
    np.testing.assert_allclose(sign_flip_p(values, seed=0), exact, atol=0.03)


def step_down_by_definition(values):
    """Adjusted p of every pair of columns: the largest statistics of each pattern, one set of pairs after another."""
    pairs = list(itertools.combinations(range(values.shape[1]), 2))
    patterns = np.array(list(itertools.product((-1, 1), repeat=len(values))))
    differences = {pair: values[:, pair[0]] - values[:, pair[1]] for pair in pairs}
    flipped = {pair: np.abs(patterns @ d) / np.sqrt(d @ d) for pair, d in differences.items()}
    observed = {pair: abs(d.sum()) / np.sqrt(d @ d) for pair, d in differences.items()}
    left = sorted(pairs, key=lambda pair: -observed[pair])
    adjusted, largest = {}, 0.0
    while left:
        top = left[0]
        most = np.max([flipped[pair] for pair in left], axis=0)
        largest = max(largest, np.mean(most >= observed[top] - 1e-9))
        adjusted[top] = largest
        left = left[1:]
    return adjusted


def test_p_of_several_pairs_is_that_of_the_step_down_by_definition():
    values = np.random.default_rng(2).normal([0.0, 0.5, 1.0, 0.4], 1.0, (9, 4))
    measured = sign_flip_p(values, seed=0)
    for (a, b), p in step_down_by_definition(values).items():
        assert measured[a, b] == measured[b, a] == pytest.approx(p)


def test_methods_that_are_equal_on_every_sample_do_not_differ():
    values = np.random.default_rng(2).random((30, 1)).repeat(3, axis=1)
    assert (sign_flip_p(values, seed=0) == 1).all()
    values[:, 2] += 1e-9 * np.random.default_rng(3).random(30)  # rounding
    assert (sign_flip_p(values, seed=0) == 1).all()


def test_equal_copies_of_a_method_leave_the_p_values_of_others():
    values = np.random.default_rng(5).normal([0.0, 0.55], 1.0, (12, 2))
    copies = np.concatenate([values, values[:, [1] * 8]], axis=1)
    assert sign_flip_p(copies, seed=0)[0, 1] == pytest.approx(sign_flip_p(values, seed=0)[0, 1])


def test_level_is_kept_when_methods_do_not_differ():
    rng = np.random.default_rng(3)
    p = [sign_flip_p(rng.integers(0, 2, (40, 2)).astype(float), seed)[0, 1] for seed in range(200)]
    assert np.mean(np.array(p) < 0.05) < 0.08


def test_hits_of_random_relevance_are_tested_by_every_outcome():
    chance = np.array([0.1, 0.25, 0.25, 0.5, 0.7])
    probability = np.zeros(6)
    for hits in itertools.product((0, 1), repeat=5):
        probability[sum(hits)] += np.prod(np.where(hits, chance, 1 - chance))
    for total in range(6):
        expected = min(1, 2 * min(probability[total:].sum(), probability[: total + 1].sum()))
        assert hits_p(np.array([1.0] * total + [0.0] * (5 - total)), chance) == pytest.approx(expected)
    assert hits_p(chance, chance) > 0.5, "ties that give every sample its chance"


def test_random_relevance_is_hardly_ever_called_better_or_worse_than_chance():
    chance, rng = np.full(40, 0.07), np.random.default_rng(0)
    hits = rng.random((2000, 40)) < chance
    p = np.array([hits_p(row.astype(float), chance) for row in hits])
    assert (p < SURE).mean() <= 0.05


def test_methods_are_tested_against_the_chance_of_each_sample_and_only_by_hits():
    rng = np.random.default_rng(0)
    chance = np.full((30, 1, 2), 0.1)
    scores = (rng.random((30, 2, 1)) < np.array([0.9, 0.1])[:, None]).astype(float)
    values = np.concatenate([np.repeat(scores, 2, axis=2), chance], axis=1)
    compared = compare(values, ("good", "poor", "random"), ("pg", "ap"), Resampling(10), chance="random")
    good, poor = (hits_p(scores[:, at, 0], chance[:, 0, 0]) for at in (0, 1))
    assert compared.p[:2, 2, 0] == pytest.approx(holm_adjusted([good, poor]))
    assert (compared.p[:2, 2, 1] == 1).all()
    alone = compare(values[:, :2], ("good", "poor"), ("pg", "ap"), Resampling(10))
    assert (compared.p[:2, :2] == alone.p).all(), "random relevance is not of their family"


def test_holm_by_hand():
    assert holm_adjusted([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])


def test_a_clear_difference_is_found_and_its_interval_excludes_zero():
    rng = np.random.default_rng(4)
    values = np.stack([rng.random((200, 1)) < 0.8, rng.random((200, 1)) < 0.5], axis=1).astype(float)
    measured = compare(values, ("good", "bad"), ("pg",), Resampling(500))
    good, bad = measured.at("good", "pg"), measured.at("bad", "pg")
    assert measured.p[good[0], bad[0], 0] < 0.01
    assert measured.difference_low[0, 1, 0] > 0 > measured.difference_high[1, 0, 0]
    assert measured.low[good] < measured.mean[good] < measured.high[good]


def test_chunks_and_a_second_call_give_the_same_numbers(monkeypatch):
    values = np.random.default_rng(5).random((20, 2, 2))
    first = compare(values, ("a", "b"), ("x", "y"), Resampling(100, 7))
    monkeypatch.setattr(intervals, "_CHUNK", 64)
    again = compare(values, ("a", "b"), ("x", "y"), Resampling(100, 7))
    np.testing.assert_allclose(first.low, again.low)
    np.testing.assert_array_equal(first.p, again.p)


def test_without_samples_or_resamples_there_is_no_comparison():
    assert compare(np.zeros((0, 2, 1)), ("a", "b"), ("x",), Resampling(100)) is None
    assert compare(np.zeros((3, 2, 1)), ("a", "b"), ("x",), Resampling(0)) is None


def worlds(better, count=400, methods=5, n=60):
    """The first groups of `count` comparisons of methods on the same samples, one of them better by so many standard
    deviations of a paired difference.
    """
    rng = np.random.default_rng(6)
    firsts = []
    for _ in range(count):
        values = rng.normal(size=(n, 1, 1)) + rng.normal(size=(n, methods, 1))
        values[:, 0] += better * np.sqrt(2)
        names = tuple(map(str, range(methods)))
        firsts.append(compare(values, names, ("x",), Resampling(200), scale=1.0).groups("x")[0])
    return firsts


def test_among_equal_methods_a_winner_is_hardly_ever_named():
    assert np.mean([len(first) == 1 for first in worlds(0.0)]) <= 0.07


def test_a_better_method_is_named_the_winner():
    assert np.mean([first == ("0",) for first in worlds(0.8)]) >= 0.8


def test_groups_go_from_the_best_down_and_follow_the_metrics_direction():
    means = np.array([3.0, 2.9, 2.0, 1.0])
    values = means[None, :, None] + 0.3 * np.random.default_rng(7).normal(size=(40, 4, 1))
    comparison = compare(values, tuple("abcd"), ("x",), Resampling(500), scale=1.0)
    assert [set(group) for group in comparison.groups("x")] == [{"a", "b"}, {"c"}, {"d"}]
    assert [set(group) for group in comparison.groups("x", higher_is_better=False)] == [{"d"}, {"c"}, {"a", "b"}]


def test_signs_of_a_cluster_flip_together_and_few_clusters_test_nothing():
    rng = np.random.default_rng(8)
    clusters = np.repeat(np.arange(12), 10)
    shared = rng.normal(size=(12, 2, 1))[clusters]
    alone, together = (compare(shared, ("a", "b"), ("x",), Resampling(500, clusters=c)) for c in (None, clusters))
    assert together.p[0, 1, 0] > alone.p[0, 1, 0]
    shared[:, 0] += 9
    few = compare(shared, ("a", "b"), ("x",), Resampling(500, clusters=clusters % 5))
    assert (few.p == 1).all()


def test_few_samples_test_nothing_and_tell_no_smallest_difference():
    values = 9.0 * np.arange(3)[None, :, None] + np.random.default_rng(9).random((6, 3, 1))
    six, five = (compare(values[:n], tuple("abc"), ("x",), Resampling(500)) for n in (6, 5))
    assert (six.is_tested, five.is_tested) == (True, False)
    assert five.smallest is None
    assert (five.p == 1).all()


def test_many_methods_are_told_apart_with_few_resamples():
    names = tuple(map(str, range(8)))
    values = 9.0 * np.arange(8)[None, :, None] + np.random.default_rng(9).random((40, 8, 1))
    assert [len(group) for group in compare(values, names, ("x",), Resampling(50)).groups("x")] == [1] * 8


def test_a_share_of_all_samples_has_an_interval_with_a_width():
    comparison = compare(np.ones((30, 2, 1)), ("a", "b"), ("pg",), Resampling(500), shares=True)
    assert comparison.low[0, 0] == pytest.approx(88.4, abs=0.1)
    assert comparison.high[0, 0] == 100


def test_stars():
    assert [stars(p) for p in (0.2, 0.04, 0.001)] == ["", "*", "**"]
