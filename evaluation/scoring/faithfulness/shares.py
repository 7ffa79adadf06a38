"""Effects of removing shares of the top tokens (NormXLogit 5): AOPC, sufficiency and accuracy of tasks with labels,
Pearson's r with the gold scores of tasks with scores.

Each table has the schema CURVES and holds one cell (model, task, precision, method). Shapes: N samples, M methods, K
shares; the axis of 2 is without the top tokens, and with the top tokens alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from evaluation.scoring.faithfulness.areas import (
    CurveTables,
    MeanCurve,
    Variants,
    by_sample,
    mean_curve,
    on_common_samples,
)
from evaluation.scoring.faithfulness.correlations import paired_correlations, pearson
from evaluation.scoring.faithfulness.flips import SHARE_ORDERS
from evaluation.scoring.faithfulness.scores import MEASURES, Summary, paired, share_scores, summarise
from evaluation.scoring.intervals import NO_CLUSTERS, ClusterNumbers, Clusters, cluster_numbers
from evaluation.scoring.statistics import Comparison, interval

SHARE_COLUMNS = [
    "sample_id",
    "explanation",
    "embedding",
    "perturbation",
    "order",
    "score",
    "logit",
    "probability",
    "correct",
]
OF_LABELS = ("aopc", "sufficiency", "accuracy", "sufficiency_accuracy")
OF_SCORES = ("pearson", "sufficiency_pearson")

Gold = Mapping[str, float | None]  # gold scores by sample


@dataclass(frozen=True)
class Shares:
    """Effects of removing shares of tokens, for all methods of one model, task, precision and perturbation."""

    measures: tuple[str, ...]  # OF_LABELS or OF_SCORES
    summaries: Mapping[tuple[str, str], Summary]  # by (method, measure), each over all samples of the method
    variants: Variants  # the variant of each method that is shown
    comparison: Comparison | None  # of the measures, on the samples that all methods have
    curves: Mapping[tuple[str, str], MeanCurve]  # at SHARES, by (method, measure), of methods with finite samples

    @property
    def lead(self) -> str:
        """The measure that is shown where only one can be."""
        return self.measures[0]

    @property
    def pairs(self) -> tuple[tuple[str, str], ...]:
        """Each measure without the top tokens, paired with the same measure with the top tokens alone."""
        return tuple(zip(self.measures[::2], self.measures[1::2], strict=True))


def shares_of(
    tables: CurveTables,
    gold: Gold,
    perturbation: str,
    resamples: int,
    seed: int,
    clusters: Clusters = NO_CLUSTERS,
) -> Shares:
    """Effects of removing shares of tokens, from `tables` of SHARE_COLUMNS by method.

    `gold` maps samples to their gold scores; samples of tasks with labels have none. `clusters` maps samples that share
    a cluster to its name. Samples that are not finite are left out and counted.
    """
    variants, rows = by_sample(tables, perturbation, SHARE_ORDERS, ["logit", "probability", "correct"])
    has_gold = any(gold.get(name) is not None for samples in rows.values() for name in samples)
    measures, of_sample = (OF_SCORES, _predictions) if has_gold else (OF_LABELS, _label_scores)
    values: dict[str, dict[str, np.ndarray]] = {}
    summaries: dict[tuple[str, str], Summary] = {}
    curves: dict[tuple[str, str], MeanCurve] = {}
    for method, samples in rows.items():
        values[method] = {name: of_sample(orders) for name, orders in samples.items()}
        stacked = np.array(list(values[method].values()))  # [N, measures, K]
        drawing = (resamples, seed, cluster_numbers(clusters, list(samples)))
        scores, finite = _gold_of(samples, gold), np.isfinite(stacked).all(axis=(1, 2))
        for at, measure in enumerate(measures):
            if has_gold:
                summary, curve = _of_scores(stacked[:, at], scores, *drawing)
            else:
                summary, curve = _of_labels(stacked[:, at], finite, MEASURES[measure].is_share, *drawing)
            summaries[method, measure] = summary
            if curve is not None:
                curves[method, measure] = curve
    ids, common = on_common_samples(values)  # [N, M, measures, K]
    drawing, compared = (resamples, seed, cluster_numbers(clusters, ids)), None
    if ids and has_gold:
        compared = paired_correlations(common, _gold_of(ids, gold), tuple(values), measures, *drawing)
    elif ids:
        compared = paired(common.mean(axis=-1), tuple(values), measures, *drawing)
    return Shares(measures, summaries, variants, compared, curves)


def _of_labels(
    values: np.ndarray, finite: np.ndarray, is_share: bool, resamples: int, seed: int, clusters: ClusterNumbers
) -> tuple[Summary, MeanCurve | None]:
    """The mean of a measure, and its mean at each share, from `values` [N, K]; None if no sample is `finite` [N]."""
    bounds = (0.0, 1.0) if is_share else None
    summary = summarise(values.mean(axis=-1), resamples, seed, bounds, clusters)
    if not finite.any():
        return summary, None
    of_finite = None if clusters is None else clusters[finite]
    return summary, mean_curve(values[finite], resamples, seed, bounds, of_finite)


def _of_scores(
    predictions: np.ndarray, gold: np.ndarray, resamples: int, seed: int, clusters: ClusterNumbers
) -> tuple[Summary, MeanCurve | None]:
    """Pearson's r of `predictions` [N, K] with `gold` scores [N], averaged over shares and at each share.

    The curve is None without an r; it is NaN where predictions do not vary, and for intervals without resamples.
    """
    correlations = pearson(predictions, gold, resamples, seed, clusters)
    by_share = correlations.by_share
    if not np.isfinite(by_share).any():
        return correlations.summary, None
    absent = np.full_like(by_share, np.nan)
    low, high = interval(correlations.drawn) if len(correlations.drawn) else (absent, absent)
    return correlations.summary, MeanCurve(by_share, low, high, correlations.n)


def _gold_of(names: Iterable[str], gold: Gold) -> np.ndarray:
    """The gold scores [N] of samples, NaN for those without."""
    scores = [gold.get(name) for name in names]
    return np.array([np.nan if score is None else score for score in scores], float)


def _predictions(orders: Mapping[str, Mapping[str, Any]]) -> np.ndarray:
    """The predicted score [2, K] of a sample at each share, from its rows by order; the whole input is left out."""
    return np.array([orders[order]["logit"][1:] for order in SHARE_ORDERS], float)


def _label_scores(orders: Mapping[str, Mapping[str, Any]]) -> np.ndarray:
    """The measures OF_LABELS [4, K] of a sample at each share, from its rows by order."""
    probability = np.array([orders[order]["probability"] for order in SHARE_ORDERS], float)  # [2, 1 + K]; null is NaN
    correct = np.array([orders[order]["correct"] for order in SHARE_ORDERS], float)
    scores = share_scores(probability[:, 1:], correct[:, 1:], probability[0, 0])
    return np.array([scores[measure] for measure in OF_LABELS])
