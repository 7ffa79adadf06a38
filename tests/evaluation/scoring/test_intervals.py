"""Intervals cover what they promise: exactly where that can be enumerated, by simulation elsewhere."""

import numpy as np
import pytest
from scipy import stats

from closelook.evaluation.scoring.intervals import (
    Resampling,
    clopper_pearson,
    difference_intervals,
    mean_intervals,
    smallest_difference,
)

WORLDS = 3000
LEAST = 0.93  # of a nominal 0.95


@pytest.mark.parametrize("n", [20, 30, 60])
def test_clopper_pearson_covers_every_share(n):
    k = np.arange(n + 1)
    low, high = clopper_pearson(k, n)
    for share in np.arange(0.5, 0.9981, 0.002):
        covered = (low <= share) & (share <= high)
        assert stats.binom.pmf(k[covered], n, share).sum() >= 0.95 - 1e-9


def test_clopper_pearson_is_scipys_for_whole_numbers_and_has_a_width_at_the_ends():
    for k in (0, 3, 29, 30):
        exact = stats.binomtest(k, 30).proportion_ci(method="exact")
        assert clopper_pearson(k, 30) == pytest.approx((exact.low, exact.high))
    assert clopper_pearson(30, 30)[0] == pytest.approx(0.025 ** (1 / 30))


def rare(rng, shape, share, low, width):
    """Ones with the probability `share` above small values."""
    return np.where(rng.random(shape) < share, 1.0, low + width * rng.random(shape))


#: By the kind of values in [0, 1]: random values of a shape, and their mean.
SHARES = {
    "bernoulli .5": (lambda rng, shape: rng.random(shape) < 0.5, 0.5),
    "bernoulli .85": (lambda rng, shape: rng.random(shape) < 0.85, 0.85),
    "bernoulli .98": (lambda rng, shape: rng.random(shape) < 0.98, 0.98),
    "85 % ones": (lambda rng, shape: np.where(rng.random(shape) < 0.85, 1.0, rng.random(shape)), 0.925),
    "beta 2 2": (lambda rng, shape: rng.beta(2, 2, shape), 0.5),
    "beta 8 1": (lambda rng, shape: rng.beta(8, 1, shape), 8 / 9),
    "beta .6 1.2": (lambda rng, shape: rng.beta(0.6, 1.2, shape), 1 / 3),
    "3 % ones": (lambda rng, shape: rare(rng, shape, 0.03, 0.0, 0.02), 0.03 + 0.97 * 0.01),
    "5 % ones": (lambda rng, shape: rare(rng, shape, 0.05, 0.2, 0.1), 0.05 + 0.95 * 0.25),
    "10 % ones": (lambda rng, shape: rare(rng, shape, 0.1, 0.0, 0.1), 0.1 + 0.9 * 0.05),
}


@pytest.mark.parametrize("n", [20, 60])
@pytest.mark.parametrize("kind", SHARES)
def test_intervals_of_means_of_bounded_values_cover(kind, n):
    draw, mean = SHARES[kind]
    values = draw(np.random.default_rng(n), (n, WORLDS)).astype(float)
    low, high = mean_intervals(values, Resampling(0), (0.0, 1.0))
    assert ((low <= mean) & (mean <= high)).mean() >= LEAST


@pytest.mark.parametrize("sizes", [[5] * 13, [40] + [2] * 19, [1] * 8 + [4] * 12 + [9] * 3])
@pytest.mark.parametrize("alike", [0.5, 0.0])
def test_intervals_of_bounded_values_in_clusters_cover(sizes, alike):
    """A value is that of its cluster with the probability sqrt(`alike`), which is then the intraclass correlation."""
    rng = np.random.default_rng(4)
    clusters = np.repeat(np.arange(len(sizes)), sizes)
    shared = rng.random((len(sizes), WORLDS))[clusters]
    shared = np.where(rng.random(shared.shape) < np.sqrt(alike), shared, rng.random(shared.shape))
    low, high = mean_intervals((shared < 0.7).astype(float), Resampling(0, clusters=clusters), (0.0, 1.0))
    assert ((low <= 0.7) & (high >= 0.7)).mean() >= LEAST


def test_an_interval_of_bounded_values_is_that_of_the_formula():
    """By hand for 1, 1, 0, 0.5: mean 5/8, variance with half a pseudo-observation at each bound, beta quantiles."""
    mean, squares = 0.625, 2 * 0.375**2 + 0.625**2 + 0.125**2
    variance = (squares + (mean**2 + (1 - mean) ** 2) / 2) / 3.5
    effective = 4 * mean * (1 - mean) / variance
    expected = (
        stats.beta.ppf(0.025, mean * effective, effective - mean * effective + 1),
        stats.beta.ppf(0.975, mean * effective + 1, effective - mean * effective),
    )
    values = np.array([[1.0], [1.0], [0.0], [0.5]])
    low, high = mean_intervals(values, Resampling(0), (0.0, 1.0))
    assert (low[0], high[0]) == pytest.approx(expected)
    in_percent = mean_intervals(100 * values, Resampling(0), (0.0, 100.0))
    np.testing.assert_allclose(in_percent, [100 * low, 100 * high])


def draws(name, n, rng):
    """[N, worlds] of a distribution without bounds, and its mean."""
    if name == "normal":
        return rng.normal(1.0, 2.0, (n, WORLDS)), 1.0
    return rng.lognormal(0.0, 0.5, (n, WORLDS)), float(np.exp(0.125))


@pytest.mark.thinned(3)
@pytest.mark.parametrize("n", [20, 30, 60])
@pytest.mark.parametrize("name", ["normal", "lognormal"])
def test_intervals_of_means_of_other_values_cover(name, n):
    values, mean = draws(name, n, np.random.default_rng([n, len(name)]))
    low, high = mean_intervals(values, Resampling(1000))
    assert ((low <= mean) & (mean <= high)).mean() >= LEAST


@pytest.mark.parametrize("n", [16, 30])
def test_an_interval_ends_where_most_values_are_nearly_equal(n):
    rng = np.random.default_rng(n)
    large = rng.random((n, 500)) < 0.2
    values = np.where(large, rng.normal(40, 10, large.shape), rng.normal(0, 1e-5, large.shape))
    low, high = mean_intervals(values, Resampling(300))
    assert (high - low).max() < 100
    assert ((low <= 8) & (high >= 8)).mean() >= 0.9


UNEVEN = [1] * 8 + [2] * 8 + [4] * 6 + [7] * 3 + [12]


@pytest.mark.thinned(3)
@pytest.mark.parametrize("sizes", [[5] * 20, UNEVEN, [2, 8] * 20])
def test_intervals_of_clusters_cover_where_those_of_single_samples_do_not(sizes):
    rng = np.random.default_rng(1)
    clusters = np.repeat(np.arange(len(sizes)), sizes)
    values = 7 + rng.normal(0, 1, (len(sizes), WORLDS))[clusters] + rng.normal(0, 0.3, (len(clusters), WORLDS))
    covered = {}
    for name, groups in (("clusters", clusters), ("samples", None)):
        for way, (low, high) in {
            "resampled": mean_intervals(values, Resampling(1000, clusters=groups)),
            "student": difference_intervals(values, clusters=groups),
        }.items():
            covered[name, way] = ((low <= 7) & (high >= 7)).mean()
            assert (high - low).mean() < 2.5
    least = LEAST if sizes is not UNEVEN else 0.92  # few clusters hold most samples
    assert min(covered["clusters", "resampled"], covered["clusters", "student"]) >= least
    assert max(covered["samples", "resampled"], covered["samples", "student"]) < 0.8


def test_intervals_of_uneven_clusters_move_with_the_values():
    clusters = np.repeat(np.arange(len(UNEVEN)), UNEVEN)
    values = np.random.default_rng(3).normal(size=(len(clusters), 2))
    for interval in (
        lambda shifted: mean_intervals(shifted, Resampling(500, clusters=clusters)),
        difference_of(clusters),
    ):
        near, far = (np.array(interval(values + shift)) for shift in (0, 100))
        np.testing.assert_allclose(far, near + 100, atol=1e-9)


def difference_of(clusters):
    return lambda values: difference_intervals(values, clusters=clusters)


def test_uneven_clusters_of_equal_values_count_as_fewer_samples():
    clusters = np.repeat(np.arange(len(UNEVEN)), UNEVEN)
    counted = len(clusters) ** 2 / np.square(UNEVEN).sum()  # 15.4 of 26 clusters
    low, high = mean_intervals(np.ones((len(clusters), 1)), Resampling(500, clusters=clusters), (0.0, 1.0))
    assert (low, high) == (pytest.approx(0.025 ** (1 / counted)), 1.0)
    low, high = difference_intervals(np.full((len(clusters), 1), 0.3), 1.0, clusters)
    unseen = 1 - 0.025 ** (1 / counted)
    assert (low, high) == (pytest.approx(0.3 - 1.3 * unseen), pytest.approx(0.3 + 0.7 * unseen))


def test_few_clusters_and_single_samples_have_no_interval():
    values = np.random.default_rng(0).normal(size=(40, 3))
    nine = Resampling(100, clusters=np.arange(40) % 9)
    for ends in (mean_intervals(values, nine), mean_intervals(values[:1], Resampling(100))):
        assert np.isnan(ends).all()
    assert np.isnan(difference_intervals(values, clusters=np.arange(40) % 9)).all()
    assert np.isfinite(mean_intervals(values, Resampling(100, clusters=np.arange(40) % 10))).all()


def test_intervals_of_differences_cover_and_equal_ones_are_not_certain():
    rng = np.random.default_rng(2)
    differences = rng.normal(0.3, 1, (25, WORLDS))
    low, high = difference_intervals(differences)
    assert ((low <= 0.3) & (high >= 0.3)).mean() >= LEAST
    low, high = difference_intervals(np.zeros((30, 1)), 1.0)
    unseen = 1 - 0.025 ** (1 / 30)
    assert (low[0], high[0]) == pytest.approx((-unseen, unseen))


def test_the_smallest_difference_is_found_four_times_in_five():
    rng, n, tests = np.random.default_rng(3), 40, 10
    smallest = smallest_difference(rng.normal(0, 2, (4000, 1))[:n] * 0 + rng.normal(0, 2, (n, 400)), tests)
    significant = stats.ttest_1samp(rng.normal(smallest, 2, (n, WORLDS)), 0).pvalue < 0.05 / tests
    assert significant.mean() == pytest.approx(0.8, abs=0.05)
    assert np.isnan(smallest_difference(np.zeros((2, 1))))
