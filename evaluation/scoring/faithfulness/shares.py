"""Effects of removing shares of the top tokens (NormXLogit 5).

They are AOPC, sufficiency and accuracy of tasks with labels, and of tasks with scores Pearson's r between predictions
on perturbed inputs and the gold scores (5.3). Each table has the schema CURVES and holds one cell (model, task,
precision, method).

Shapes: N samples, M or V methods, K shares of tokens that are removed, R resamples, G clusters; the axis of 2 is
without the top tokens, and with the top tokens alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from closelook.evaluation.scoring.faithfulness.areas import (
    CurveTables,
    MeanCurve,
    Variants,
    by_sample,
    mean_curve,
    on_common_samples,
)
from closelook.evaluation.scoring.faithfulness.flips import SHARE_ORDERS
from closelook.evaluation.scoring.faithfulness.scores import MEASURES, Summary, paired, share_scores, summarise
from closelook.evaluation.scoring.intervals import NO_CLUSTERS, Clusters, Resampling, cluster_numbers
from closelook.evaluation.scoring.statistics import Comparison, bootstrap_means, finite_interval, interval

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

Rows = Mapping[str, Mapping[str, Any]]  # of a sample, by order
Gold = Mapping[str, float | None]  # gold scores by sample


@dataclass(frozen=True)
class Shares:
    """Effects of removing shares of tokens, for all methods of one model, task, precision and perturbation."""

    measures: tuple[str, ...]  # OF_LABELS or OF_SCORES
    summaries: Mapping[tuple[str, str], Summary]  # by (method, measure), each over all samples of the method
    variants: Variants  # the variant of each method that is shown
    comparison: Comparison | None  # of OF_LABELS, on the samples that all methods have
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
    resampling: Resampling,
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
        drawn = resampling.within(cluster_numbers(clusters, list(samples)))
        scores, finite = _gold_of(samples, gold), np.isfinite(stacked).all(axis=(1, 2))
        for at, measure in enumerate(measures):
            if has_gold:
                summary, curve = _of_scores(stacked[:, at], scores, drawn)
            else:
                summary, curve = _of_labels(stacked[:, at], finite, MEASURES[measure].is_share, drawn)
            summaries[method, measure] = summary
            if curve is not None:
                curves[method, measure] = curve
    ids, common = on_common_samples(values)  # [N, M, measures, K]
    compared = None
    if ids and not has_gold:  # r is of all samples at once: there are no values of samples to pair
        drawn = resampling.within(cluster_numbers(clusters, ids))
        compared = paired(common.mean(axis=-1), tuple(values), measures, drawn)
    return Shares(measures, summaries, variants, compared, curves)


def _of_labels(
    values: np.ndarray, finite: np.ndarray, is_share: bool, resampling: Resampling
) -> tuple[Summary, MeanCurve | None]:
    """The mean of a measure, and its mean at each share, from `values` [N, K]; None if no sample is `finite` [N]."""
    bounds = (0.0 if is_share else -1.0, 1.0)  # a difference of probabilities lies between -1 and 1
    summary = summarise(values.mean(axis=-1), resampling, bounds)
    if not finite.any():
        return summary, None
    return summary, mean_curve(values[finite], resampling.among(finite), bounds)


def _of_scores(predictions: np.ndarray, gold: np.ndarray, resampling: Resampling) -> tuple[Summary, MeanCurve | None]:
    """Pearson's r of `predictions` [N, K] with `gold` scores [N], averaged over shares and at each share."""
    correlations = pearson(predictions, gold, resampling)
    by_share = correlations.by_share
    if not np.isfinite(by_share).any():
        return correlations.summary, None
    absent = np.full_like(by_share, np.nan)
    low, high = interval(correlations.drawn) if len(correlations.drawn) else (absent, absent)
    return correlations.summary, MeanCurve(by_share, low, high, correlations.n)


def _gold_of(names: Iterable[str], gold: Gold) -> np.ndarray:
    """The gold scores [N] of samples, NaN for those without."""
    return np.array([gold.get(name) for name in names], float)  # None becomes NaN


def _predictions(orders: Rows) -> np.ndarray:
    """The predicted score [2, K] of a sample at each share, from its rows by order; the whole input is left out."""
    return np.array([orders[order]["logit"][1:] for order in SHARE_ORDERS], float)


def _label_scores(orders: Rows) -> np.ndarray:
    """The measures OF_LABELS [4, K] of a sample at each share, from its rows by order."""
    probability = np.array([orders[order]["probability"] for order in SHARE_ORDERS], float)  # [2, 1 + K]; null is NaN
    correct = np.array([orders[order]["correct"] for order in SHARE_ORDERS], float)
    scores = share_scores(probability[:, 1:], correct[:, 1:], probability[0, 0])
    return np.array([scores[measure] for measure in OF_LABELS])


@dataclass(frozen=True)
class Correlations:
    """Pearson's r at each share of removed tokens; NaN where predictions do not vary."""

    by_share: np.ndarray  # [K]
    drawn: np.ndarray  # [R, K] of resampled samples
    n: int
    left_out: int  # samples whose predictions or gold score are not finite

    @property
    def summary(self) -> Summary:
        """The mean over shares, with its percentile interval."""
        low, high = finite_interval(self.drawn.mean(axis=-1))
        return Summary(float(self.by_share.mean()), low, high, self.n, self.left_out)


def pearson(predictions: np.ndarray, gold: np.ndarray, resampling: Resampling) -> Correlations:
    """Pearson's r between `predictions` [N, K] on perturbed inputs and `gold` scores [N].

    The bootstrap draws whole samples, with all their shares, or whole clusters.
    """
    finite = np.isfinite(predictions).all(axis=-1) & np.isfinite(gold)
    n, left_out = int(finite.sum()), int((~finite).sum())
    if n < 2:
        shares = predictions.shape[-1]
        return Correlations(np.full(shares, np.nan), np.full((0, shares), np.nan), n, left_out)
    x, y = predictions[finite], np.broadcast_to(gold[finite, None], predictions[finite].shape)
    x, y = x - x.mean(axis=0), y - y.mean(axis=0)  # sums of squares would cancel far from zero
    moments = np.stack([x, y, x * x, y * y, x * y], axis=1)  # [n, 5, K]
    drawn = bootstrap_means(moments.reshape(n, -1), resampling.among(finite))
    drawn = drawn.reshape(len(drawn), *moments.shape[1:])
    return Correlations(_correlation(moments.mean(axis=0)), _correlation(np.moveaxis(drawn, 1, 0)), n, left_out)


def _correlation(moments: np.ndarray) -> np.ndarray:
    """Pearson's r [...] from the means [5, ...] of x, y, x x, y y and x y; NaN where x or y varies by rounding only."""
    x, y, xx, yy, xy = moments
    varies = (xx - x * x > 1e-12 * xx) & (yy - y * y > 1e-12 * yy)
    spread = np.sqrt(np.where(varies, (xx - x * x) * (yy - y * y), 1))
    return np.where(varies, (xy - x * y) / spread, np.nan)
