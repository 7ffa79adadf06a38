"""Effects of removing shares of the top tokens: AOPC, sufficiency, accuracy, and of scores Pearson's r with gold.

Tables are of the schema of curves, those of one cell (model, task, precision, method) each (NormXLogit 5). Shapes: N
samples, M methods, K shares; the axis of 2 is without the top tokens, and with those alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa

from evaluation.scoring.areas import MeanCurve, Variant, by_sample, mean_curve, together
from evaluation.scoring.correlations import Correlations, paired_correlations, pearson
from evaluation.scoring.faithfulness import MEASURES, Summary, paired, share_scores, summarise
from evaluation.scoring.flips import SHARE_ORDERS
from evaluation.scoring.intervals import numbered
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

Samples = Mapping[str, Mapping[str, Mapping[str, Any]]]  # rows by sample and order
Gold = Mapping[str, float | None]  # scores by sample


@dataclass(frozen=True)
class Shares:
    """Methods on the samples of one model, task, precision and perturbation."""

    measures: tuple[str, ...]  # OF_LABELS or OF_SCORES
    summaries: Mapping[tuple[str, str], Summary]  # by (method, measure), each over all samples that it has
    variants: Mapping[str, Variant]  # of each method the one that is told
    comparison: Comparison | None  # of the measures, on the samples that all methods have
    curves: Mapping[tuple[str, str], MeanCurve]  # at SHARES, by (method, measure), of methods with finite samples

    @property
    def lead(self) -> str:
        return self.measures[0]

    @property
    def pairs(self) -> tuple[tuple[str, str], ...]:
        """Measures that belong together: without the top tokens, and with those alone."""
        return tuple(zip(self.measures[::2], self.measures[1::2], strict=True))


def shares_of(
    tables: Mapping[str, pa.Table],
    gold: Gold,
    perturbation: str,
    resamples: int,
    seed: int,
    clusters: Mapping[str, str] = MappingProxyType({}),
) -> Shares:
    """From tables of SHARE_COLUMNS by method, and the gold scores by sample id, which samples with a label lack.

    `clusters` names those of samples that share one. Samples that are not finite are left out and counted.
    """
    variants, rows = by_sample(tables, perturbation, SHARE_ORDERS, ["logit", "probability", "correct"])
    if any(gold.get(name) is not None for samples in rows.values() for name in samples):
        return _of_scores(rows, variants, gold, resamples, seed, clusters)
    values = {method: {name: _of_label(own) for name, own in samples.items()} for method, samples in rows.items()}
    summaries: dict[tuple[str, str], Summary] = {}
    curves: dict[tuple[str, str], MeanCurve] = {}
    for method, own in values.items():
        stacked, of = np.array(list(own.values())), numbered(clusters, list(own))  # [N, 4, K], [N]
        finite = np.isfinite(stacked).all(axis=(1, 2))
        for at, measure in enumerate(OF_LABELS):
            bounds = (0.0, 1.0) if MEASURES[measure].is_share else None
            summaries[method, measure] = summarise(stacked[:, at].mean(axis=-1), resamples, seed, bounds, of)
            if finite.any():
                of_finite = None if of is None else of[finite]
                curves[method, measure] = mean_curve(stacked[finite, at], resamples, seed, bounds, of_finite)
    ids, every = together(values)  # [N, M, 4, K]
    drawing = (resamples, seed, numbered(clusters, ids))
    compared = paired(every.mean(axis=-1), tuple(values), OF_LABELS, *drawing) if ids else None
    return Shares(OF_LABELS, summaries, variants, compared, curves)


def _of_scores(
    rows: Mapping[str, Samples],
    variants: Mapping[str, Variant],
    gold: Gold,
    resamples: int,
    seed: int,
    clusters: Mapping[str, str],
) -> Shares:
    values = {method: {name: _scores(own) for name, own in samples.items()} for method, samples in rows.items()}
    summaries: dict[tuple[str, str], Summary] = {}
    curves: dict[tuple[str, str], MeanCurve] = {}
    for method, own in values.items():
        scores, predictions = _gold_of(own, gold), np.array(list(own.values()))  # [N], [N, 2, K]
        of = numbered(clusters, list(own))
        for at, measure in enumerate(OF_SCORES):
            correlations = pearson(predictions[:, at], scores, resamples, seed, of)
            summaries[method, measure] = correlations.summary
            if np.isfinite(correlations.by_share).any():
                curves[method, measure] = _curve_of(correlations)
    ids, every = together(values)  # [N, M, 2, K]
    compared = None
    if ids:
        drawing = (resamples, seed, numbered(clusters, ids))
        compared = paired_correlations(every, _gold_of(ids, gold), tuple(values), OF_SCORES, *drawing)
    return Shares(OF_SCORES, summaries, variants, compared, curves)


def _curve_of(correlations: Correlations) -> MeanCurve:
    """Shares at which predictions do not vary are gaps, and so are intervals without resamples."""
    absent = np.full_like(correlations.by_share, np.nan)
    low, high = interval(correlations.drawn) if len(correlations.drawn) else (absent, absent)
    return MeanCurve(correlations.by_share, low, high, correlations.n)


def _gold_of(names: Iterable[str], gold: Gold) -> np.ndarray:
    """[N], NaN where there is none."""
    return np.array([np.nan if (score := gold.get(name)) is None else score for name in names], float)


def _scores(own: Mapping[str, Mapping[str, Any]]) -> np.ndarray:
    """The score of a sample at each share [2, K]."""
    return np.array([own[order]["logit"][1:] for order in SHARE_ORDERS], float)


def _of_label(own: Mapping[str, Mapping[str, Any]]) -> np.ndarray:
    """OF_LABELS of a sample at each share [4, K]."""
    probability, correct = (
        np.array([own[order][name] for order in SHARE_ORDERS], float) for name in ("probability", "correct")
    )  # [2, 1 + K]; null is NaN
    scores = share_scores(probability[:, 1:], correct[:, 1:], probability[0, 0])
    return np.array([scores[measure] for measure in OF_LABELS])
