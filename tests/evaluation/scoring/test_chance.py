"""Exact chance equals the mean over every order and every choice of signs, or over many draws."""

from itertools import combinations, product

import numpy as np
import pytest

from closelook.evaluation.scoring.chance import DRAWS, EXACT, chance
from closelook.evaluation.scoring.metrics import METRICS
from tests.oracles import metrics as oracles_metrics

BY_ORDER = ("pg", "pg2", "tied_tops", "mrr", "mrr_strict", "pta", "iou", "iou_positive", "rra", "ap")
SIZES = [(1, 1), (2, 1), (3, 1), (3, 2), (4, 2), (5, 1), (5, 3)]


@pytest.mark.parametrize("name", BY_ORDER)
@pytest.mark.parametrize(("n", "g"), SIZES)
def test_chance_is_the_mean_over_all_places_of_evidence_and_all_signs(name, n, g):
    """Distinct values, each number of them positive as often as coins have it; evidence at every place."""
    oracle, total = getattr(oracles_metrics, name), 0.0
    marks = [[at in places for at in range(n)] for places in combinations(range(n), g)]
    for signs in product((0, 1), repeat=n):
        values = [rank - (n - sum(signs)) + 0.5 for rank in range(n)]
        total += np.mean([oracle(values, marked) for marked in marks]) / 2**n
    assert EXACT[name](n, g) == pytest.approx(total)


@pytest.mark.thinned(4)
@pytest.mark.parametrize("name", sorted(set(METRICS) - set(BY_ORDER)))
def test_chance_is_what_drawn_relevance_scores(name):
    rng, n, g, rows = np.random.default_rng(3), 9, 2, 4000
    oracle = getattr(oracles_metrics, name)
    scores = [oracle(list(rng.uniform(-1, 1, n)), [at < g for at in range(n)]) for _ in range(rows)]
    levels = chance(METRICS[name], np.full(3, n), np.full(3, g))
    error = np.std(scores) * (1 / np.sqrt(rows) + (name not in EXACT) / np.sqrt(DRAWS))
    assert levels == pytest.approx(np.full(3, np.mean(scores)), abs=5 * error + 1e-9)


def test_samples_of_equal_sizes_have_one_chance_level():
    levels = chance(METRICS["iou_soft"], np.array([6, 6, 8]), np.array([1, 1, 2]))
    assert levels[0] == levels[1] != levels[2]


def test_chance_of_long_texts_is_finite():
    for name in METRICS:
        assert np.isfinite(chance(METRICS[name], np.array([1500]), np.array([40]))).all()
