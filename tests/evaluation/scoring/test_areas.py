"""Areas over samples, mean curves, and agreement of rankings."""

import numpy as np
import pyarrow as pa
import pytest
from scipy.stats import spearmanr

from closelook.evaluation.schema import CURVES
from closelook.evaluation.scoring.faithfulness.areas import (
    GRID,
    areas_of,
    mean_curves,
    of_score,
    rank_correlation,
    scores_of,
    shown_variant,
)
from closelook.evaluation.scoring.intervals import Resampling

N = 40


def table_of(
    difference, seed, explanation="target", embedding="full", perturbation="zero", samples=N, lost=(), score="target"
):
    """Curves of two to six tokens whose areas differ by about `difference`; those of the samples `lost` are NaN."""
    draw = np.random.default_rng(seed)
    rows = []
    for sample in range(samples):
        tokens = 2 + sample % 5
        for order, sign in (("morf", -1), ("lerf", 1)):
            inner = sign * difference / 2 + draw.normal(0, 0.5, tokens - 1)
            logit = np.full(tokens + 1, np.nan) if sample in lost else np.array([4, *inner, -4])
            rows.append(
                {
                    "sample_id": f"s{sample}",
                    "explanation": explanation,
                    "embedding": embedding,
                    "perturbation": perturbation,
                    "order": order,
                    "ranked": {"full": "positions", "partial": "tokens", "none": "any"}[embedding],
                    "score": score,
                    "target_id": 3,
                    "removed": list(range(tokens + 1)),
                    "logit": logit,
                    "probability": np.zeros(tokens + 1),
                    "correct": [True] * (tokens + 1),
                    "area": float(np.trapezoid(logit, np.linspace(0, 1, tokens + 1))),
                }
            )
    return pa.Table.from_pylist(rows, schema=CURVES)


def test_means_are_over_samples_and_the_difference_is_lerf_minus_morf():
    table = table_of(2.0, 0)
    measured = areas_of({"lrp": table}, "zero", Resampling(200))
    rows = table.to_pylist()
    morf, lerf = ([row["area"] for row in rows if row["order"] == order] for order in ("morf", "lerf"))
    assert measured.summaries["lrp", "area_morf"].value == pytest.approx(np.mean(morf))
    assert measured.summaries["lrp", "area_lerf"].value == pytest.approx(np.mean(lerf))
    delta = measured.summaries["lrp", "delta_area"]
    assert delta.value == pytest.approx(np.mean(lerf) - np.mean(morf))
    assert delta.low < delta.value < delta.high
    assert (delta.n, delta.left_out) == (N, 0)


def test_random_orders_have_no_difference_and_the_mean_area_of_both():
    tables = {"lrp": table_of(2.0, 0), "random": table_of(0.0, 1, lost=(3,))}
    measured = areas_of(tables, "zero", Resampling(200), chance=["random"])
    rows = [row["area"] for row in tables["random"].to_pylist() if row["sample_id"] != "s3"]
    delta, *both = (measured.summaries["random", measure] for measure in ("delta_area", "area_morf", "area_lerf"))
    assert (delta.value, delta.n, delta.left_out) == (0, N - 1, 1)
    assert np.isnan(delta.low)
    for area in both:
        assert area.value == pytest.approx(np.mean(rows))
        assert area.low < area.value < area.high
    assert list(measured.p_zero) == ["lrp"]
    compared, alone = measured.comparison, areas_of({"lrp": tables["lrp"]}, "zero", Resampling(200))
    kept = [delta for name, delta in alone.deltas["lrp"].items() if name != "s3"]
    at = compared.metrics.index("delta_area")
    assert compared.mean[0, at] - compared.mean[1, at] == pytest.approx(np.mean(kept))


def test_samples_that_are_not_finite_are_left_out_and_counted_and_methods_compared_on_those_that_all_have():
    tables = {"lrp": table_of(2.0, 0, lost=(3, 4), samples=30), "random": table_of(0.0, 1)}
    measured = areas_of(tables, "zero", Resampling(100))
    assert (measured.summaries["lrp", "delta_area"].n, measured.summaries["lrp", "delta_area"].left_out) == (28, 2)
    assert (measured.summaries["random", "delta_area"].n, measured.comparison.n) == (N, 28)


def test_what_explains_the_target_is_told_before_a_contrast_and_token_embeddings_before_the_sum_with_positions():
    table = pa.concat_tables([table_of(2.0, 0, "contrastive"), table_of(1.0, 1, "target", "partial")])
    assert shown_variant(table) == shown_variant(pa.concat_tables([table_of(2.0, 0), table])) == ("target", "partial")
    assert shown_variant(CURVES.empty_table()) is None


def test_curves_of_one_score_stand_alone():
    contrast, target = table_of(2.0, 0, "contrastive", score="contrast"), table_of(1.0, 1)
    both = pa.concat_tables([contrast, target])
    assert scores_of([both]) == ["target", "contrast"]
    assert shown_variant(of_score(both, "contrast")) == ("contrastive", "full")
    measured = areas_of({"lrp": of_score(both, "contrast")}, "zero", Resampling(100))
    assert measured.summaries == areas_of({"lrp": contrast}, "zero", Resampling(100)).summaries
    nothing_explained = table_of(2.0, 0, "none", "none", score="contrast")
    assert scores_of([target, nothing_explained]) == ["target"], "nothing explains the contrast"
    assert scores_of([]) == ["target"]


def test_curves_of_several_scores_of_a_variant_are_not_mixed():
    table = pa.concat_tables([table_of(2.0, 0, "none", "none", score=score) for score in ("target", "contrast")])
    with pytest.raises(ValueError, match="several scores"):
        areas_of({"random": table}, "zero", Resampling(100))


def test_other_perturbations_are_no_part_of_it():
    table = pa.concat_tables([table_of(2.0, 0), table_of(9.0, 1, perturbation="mask")])
    alone = areas_of({"lrp": table_of(2.0, 0)}, "zero", Resampling(100))
    assert areas_of({"lrp": table}, "zero", Resampling(100)).summaries == alone.summaries
    assert areas_of({"lrp": table}, "delete", Resampling(100)).summaries == {}


def test_curves_of_different_lengths_are_averaged_at_shares_of_their_tokens():
    table = table_of(2.0, 0)
    measured = mean_curves(table, "zero", ("target", "full"), Resampling(100))
    for order in ("morf", "lerf"):
        curves = [(row["removed"], row["logit"]) for row in table.to_pylist() if row["order"] == order]
        at = 10
        expected = np.mean([np.interp(GRID[at] * removed[-1], removed, logit) for removed, logit in curves])
        assert measured[order].mean[at] == pytest.approx(expected)
        assert measured[order].low[at] < expected < measured[order].high[at]
        assert measured[order].mean[0] == pytest.approx(4)
        assert measured[order].n == N
    np.testing.assert_allclose(measured["delta"].mean, measured["lerf"].mean - measured["morf"].mean, atol=1e-12)


def test_rank_correlation_is_spearmans_with_ties():
    x, y = [1.0, 2.0, 2.0, 5.0, 3.0], [0.1, 0.4, 0.3, 0.3, 0.9]
    assert rank_correlation(x, y) == pytest.approx(spearmanr(x, y).statistic)
    assert rank_correlation(x, np.array(y) * (1 + 1e-7 * np.arange(len(y)))) == pytest.approx(spearmanr(x, y).statistic)
    assert np.isnan(rank_correlation([1.0], [2.0]))
    assert np.isnan(rank_correlation([1.0, 1.0], [1.0, 2.0]))
