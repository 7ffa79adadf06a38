"""What shares of the top tokens do over samples: AOPC and sufficiency, accuracy, and of scores Pearson's r with gold.

Tables are of the schema of curves, those of one cell (model, task, precision, method) each (NormXLogit 5). Shapes: N
samples, M methods, K shares; the axis of 2 is without the top tokens, and with those alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from evaluation.scoring.areas import MeanCurve, Variant, mean_curve, told
from evaluation.scoring.correlations import Correlations, paired_correlations, pearson
from evaluation.scoring.faithfulness import Summary, paired, share_scores, summarise
from evaluation.scoring.flips import SHARE_ORDERS
from evaluation.scoring.statistics import Comparison, interval

SHARE_COLUMNS = [
    "sample_id",
    "explanation",
    "embedding",
    "perturbation",
    "order",
    "logit",
    "probability",
    "correct",
]
OF_LABELS = ("aopc", "sufficiency", "accuracy", "sufficiency_accuracy")
OF_SCORES = ("pearson", "sufficiency_pearson")


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
    tables: Mapping[str, pa.Table], gold: Mapping[str, float | None], perturbation: str, resamples: int, seed: int
) -> Shares:
    """From tables of SHARE_COLUMNS by method, and the gold scores by sample id, which samples with a label lack.

    Samples that are not finite are left out and counted.
    """
    variants = {method: variant for method, table in tables.items() if (variant := told(table)) is not None}
    rows = {method: _by_sample(tables[method], perturbation, variant) for method, variant in variants.items()}
    rows = {method: samples for method, samples in rows.items() if samples}
    of_scores = any(gold.get(name) is not None for samples in rows.values() for name in samples)
    summaries: dict[tuple[str, str], Summary] = {}
    curves: dict[tuple[str, str], MeanCurve] = {}
    if of_scores:
        said = {method: {name: _said(own) for name, own in samples.items()} for method, samples in rows.items()}
        for method, own in said.items():
            scores, predictions = _gold_of(own, gold), np.array(list(own.values()))  # [N, 2, K]
            for at, measure in enumerate(OF_SCORES):
                correlations = pearson(predictions[:, at], scores, resamples, seed)
                summaries[method, measure] = correlations.summary
                if np.isfinite(correlations.by_share).any():
                    curves[method, measure] = _curve_of(correlations)
        ids = _common(said)
        every = np.array([[own[name] for own in said.values()] for name in ids])  # [N, M, 2, K]
        compared = (
            paired_correlations(every, _gold_of(ids, gold), tuple(said), OF_SCORES, resamples, seed) if ids else None
        )
        return Shares(OF_SCORES, summaries, {method: variants[method] for method in rows}, compared, curves)
    values = {method: {name: _of_label(own) for name, own in samples.items()} for method, samples in rows.items()}
    for method, own in values.items():
        stacked = np.array(list(own.values()))  # [N, 4, K]
        finite = np.isfinite(stacked).all(axis=(1, 2))
        for at, measure in enumerate(OF_LABELS):
            summaries[method, measure] = summarise(stacked[:, at].mean(axis=-1), resamples, seed)
            if finite.any():
                curves[method, measure] = mean_curve(stacked[finite, at], resamples, seed)
    ids = _common(values)
    together = np.array([[own[name].mean(axis=-1) for own in values.values()] for name in ids])  # [N, M, 4]
    compared = paired(together, tuple(values), OF_LABELS, resamples, seed) if ids else None
    return Shares(OF_LABELS, summaries, {method: variants[method] for method in rows}, compared, curves)


def _curve_of(correlations: Correlations) -> MeanCurve:
    """Shares at which predictions do not vary are gaps."""
    low, high = (
        interval(correlations.drawn) if len(correlations.drawn) else (correlations.by_share, correlations.by_share)
    )
    return MeanCurve(correlations.by_share, low, high, correlations.n)


def _common(samples: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """The samples that all methods have."""
    return sorted(set.intersection(*map(set, samples.values()))) if samples else []


def _gold_of(names: Iterable[str], gold: Mapping[str, float | None]) -> np.ndarray:
    """[N], NaN where there is none."""
    return np.array([np.nan if (score := gold.get(name)) is None else score for name in names], float)


def _said(own: Mapping[str, Mapping[str, Any]]) -> np.ndarray:
    """The score of a sample at each share [2, K]."""
    return np.array([own[order]["logit"][1:] for order in SHARE_ORDERS], float)


def _of_label(own: Mapping[str, Mapping[str, Any]]) -> np.ndarray:
    """OF_LABELS of a sample at each share [4, K]."""
    probability, correct = (
        np.array([own[order][name] for order in SHARE_ORDERS], float) for name in ("probability", "correct")
    )  # [2, 1 + K]; null is NaN
    scores = share_scores(probability[:, 1:], correct[:, 1:], probability[0, 0])
    return np.array([scores[measure] for measure in OF_LABELS])


def _by_sample(table: pa.Table, perturbation: str, variant: Variant) -> dict[str, dict[str, dict[str, Any]]]:
    """Rows by sample and order."""
    keep = pc.is_in(table["order"], pa.array(SHARE_ORDERS))
    for name, value in (("perturbation", perturbation), ("explanation", variant[0]), ("embedding", variant[1])):
        keep = pc.and_(keep, pc.equal(table[name], value))
    curves: dict[str, dict[str, dict[str, Any]]] = {}
    for row in table.filter(keep).to_pylist():
        curves.setdefault(row["sample_id"], {})[row["order"]] = row
    return curves
