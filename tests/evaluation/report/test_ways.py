"""Rankings under two ways, from their curves and by Spearman's definition."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import spearmanr

from closelook.evaluation.report.sections.evidence import ways_table
from closelook.evaluation.report.sections.faithfulness import CurveSet
from closelook.evaluation.report.table import UNDEFINED
from closelook.evaluation.scoring.faithfulness.areas import areas_of
from closelook.evaluation.scoring.intervals import Resampling
from closelook.jobs.methods import METHODS
from tests.evaluation.report.test_faithfulness import some_results
from tests.evaluation.scoring.test_areas import N, table_of

MEANS = {"lrp": 0.3, "gradient_x_input": 0.2, "attnlrp": 0.1, "gradient_l2": 0.0, "random": 9.0}


def tables_of(way, seed, lost=(), names=tuple(MEANS)):
    return {
        name: table_of(MEANS[name], seed + at, perturbation=way, lost=lost if name == "lrp" else ())
        for at, name in enumerate(names)
    }


def drawn_of(way, seed, model="gpt2", score="target", **changes):
    areas = areas_of(tables_of(way, seed, **changes), way, Resampling(50))
    return CurveSet(model, "sva", "float32", way, areas, {}, score=score)


def means_of(curve_set, methods, samples):
    return [np.mean([curve_set.areas.deltas[method][name] for name in samples]) for method in methods]


@pytest.fixture
def results():
    return replace(some_results(), methods={name: METHODS[name] for name in MEANS})


def test_the_correlation_is_spearmans_of_means_on_samples_that_all_have_under_both_ways(results):
    zeroed, resampled = drawn_of("zero", 0, lost=(1, 4)), drawn_of("resample", 50, lost=(4, 9))
    table = ways_table([zeroed, resampled], results, Resampling(200))
    [row] = table.rows
    assert row.labels == ("gpt2", "zeroed, resampled")
    samples = [f"s{at}" for at in range(N) if at not in (1, 4, 9)]
    methods = [name for name in MEANS if name != "random"]
    sides = [means_of(way, methods, samples) for way in (zeroed, resampled)]
    correlation, count, of = row.cells
    assert correlation.value == pytest.approx(spearmanr(*sides).statistic)
    assert (count.value, of.value, correlation.n) == (4, len(samples), len(samples))
    assert correlation.low <= correlation.value <= correlation.high
    drawn = np.random.default_rng(3)
    again = []
    for _ in range(300):
        some = drawn.choice(samples, len(samples))
        again.append(spearmanr(*(means_of(way, methods, some) for way in (zeroed, resampled))).statistic)
    assert (correlation.low, correlation.high) == pytest.approx(np.quantile(again, [0.025, 0.975]), abs=0.3)


def test_every_two_ways_of_a_model_and_score_have_a_row_and_a_single_way_none(results):
    drawn = [drawn_of(way, at) for at, way in enumerate(("zero", "delete", "resample"))]
    drawn += [
        drawn_of("zero", 7, score="contrast"),
        drawn_of("delete", 8, score="contrast"),
        drawn_of("zero", 9, "llama"),
    ]
    table = ways_table(drawn, results, Resampling(50))
    assert [row.labels for row in table.rows] == [
        ("gpt2", "zeroed, deleted"),
        ("gpt2", "zeroed, resampled"),
        ("gpt2", "deleted, resampled"),
        ("gpt2, target − foil", "zeroed, deleted"),
    ]
    assert not ways_table(drawn[-1:], results, Resampling(50)).rows


def test_a_method_without_finite_curves_under_one_way_is_not_ranked(results):
    lost = tuple(range(N))
    zeroed, resampled = drawn_of("zero", 0, lost=lost), drawn_of("resample", 50)
    [row] = ways_table([zeroed, resampled], results, Resampling(50)).rows
    assert [cell.value for cell in row.cells[1:]] == [3, N]
    few = drawn_of("resample", 50, names=("lrp", "random"))
    [row] = ways_table([drawn_of("zero", 0), few], results, Resampling(50)).rows
    assert row.cells[0].state == UNDEFINED
    assert [cell.value for cell in row.cells[1:]] == [1, N]
    [row] = ways_table([zeroed, few], results, Resampling(50)).rows
    assert [cell.value for cell in row.cells[1:]] == [0, 0]
