"""Areas under faithfulness curves over samples: means, intervals, paired tests, mean curves, and agreement of rankings.

Tables are of the schema of curves, those of one cell (model, task, precision, method) each. Shapes: N samples, M
methods, S points of a grid.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from evaluation.scoring.faithfulness import MEASURES, Summary, paired, summarise
from evaluation.scoring.flips import ORDERS
from evaluation.scoring.statistics import FLIPS, Comparison, bootstrap_means, interval, sign_flip_p
from lrp_core.near_ties import ROUNDING

AREA_COLUMNS = ["sample_id", "explanation", "embedding", "perturbation", "order", "area"]
CURVE_COLUMNS = ["explanation", "embedding", "perturbation", "order", "removed", "logit"]
AREAS = tuple(MEASURES)[:3]  # delta_area, area_morf, area_lerf
GRID = np.linspace(0, 1, 41)  # shares of the tokens at which curves of different lengths are averaged
#: Of several variants of a method, the first: curves follow the target's logit, so what explains that comes first.
_PREFERRED = (("target", "log_prob", "contrastive", "none"), ("full", "partial", "none"))

Variant = tuple[str, str]  # explanation, embedding


@dataclass(frozen=True)
class Areas:
    """Methods on the samples of one model, task, precision and perturbation."""

    summaries: Mapping[tuple[str, str], Summary]  # by (method, measure), each over all samples that it has
    variants: Mapping[str, Variant]  # of each method the one that is told
    comparison: Comparison | None  # on the samples that all methods have
    p_zero: Mapping[str, float]  # of each method, that `delta_area` is not zero, not adjusted for the number of methods


@dataclass(frozen=True)
class MeanCurve:
    """What comes out at GRID or SHARES of tokens gone, over `n` samples, with ends of the 95 % interval [S]."""

    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray
    n: int


def areas_of(tables: Mapping[str, pa.Table], perturbation: str, resamples: int, seed: int) -> Areas:
    """Areas of methods, from their tables of AREA_COLUMNS. Samples that are not finite are left out and counted."""
    variants = {method: variant for method, table in tables.items() if (variant := told(table)) is not None}
    by_sample = {method: _by_sample(tables[method], perturbation, variant) for method, variant in variants.items()}
    by_sample = {method: samples for method, samples in by_sample.items() if samples}
    summaries = {}
    for method, samples in by_sample.items():
        values = np.array(list(samples.values()))  # [N, 3]
        for at, measure in enumerate(AREAS):
            summaries[method, measure] = summarise(values[:, at], resamples, seed)
    ids = sorted(set.intersection(*(set(samples) for samples in by_sample.values()))) if by_sample else []
    stacked = np.array([[samples[name] for samples in by_sample.values()] for name in ids])  # [N, M, 3]
    compared = paired(stacked, tuple(by_sample), AREAS, resamples, seed) if ids else None
    p_zero = {method: _p_zero(np.array(list(own.values()))[:, 0], resamples, seed) for method, own in by_sample.items()}
    return Areas(summaries, {method: variants[method] for method in by_sample}, compared, p_zero)


def _p_zero(values: np.ndarray, resamples: int, seed: int) -> float:
    """The p value of finite `values` [N] having either sign alike; 1 where there are none."""
    finite = values[np.isfinite(values)]
    beside_zero = np.stack([finite, np.zeros_like(finite)], axis=1)[..., None]  # [N, 2, 1]
    return float(sign_flip_p(beside_zero, FLIPS * resamples, seed)[0, 1, 0]) if len(finite) and resamples else 1.0


def told(table: pa.Table) -> Variant | None:
    """The variant that tables and figures show; None of an empty table."""
    rows = table.group_by(["explanation", "embedding"]).aggregate([]).to_pylist()
    return preferred([(row["explanation"], row["embedding"]) for row in rows])


def preferred(variants: Iterable[Variant]) -> Variant | None:
    """The one of a method's variants that stands for it; None of none."""
    return min(
        variants, key=lambda one: [order.index(part) for order, part in zip(_PREFERRED, one, strict=True)], default=None
    )


def mean_curves(
    table: pa.Table, perturbation: str, variant: Variant, resamples: int, seed: int
) -> dict[str, MeanCurve]:
    """Mean curves by order, and their difference as `delta`, from a table of CURVE_COLUMNS; of finite samples."""
    kept = _of(table, perturbation, variant)
    values = {}
    for order in ORDERS:
        own = kept.filter(pc.equal(kept["order"], order))
        pairs = zip(own["removed"].to_pylist(), own["logit"].to_pylist(), strict=True)
        values[order] = np.array([np.interp(GRID, np.divide(k, k[-1]), logit) for k, logit in pairs])  # [N, S]
    values["delta"] = values["lerf"] - values["morf"]
    finite = np.isfinite(values["delta"]).all(axis=-1)
    return {name: mean_curve(rows[finite], resamples, seed) for name, rows in values.items() if finite.any()}


def mean_curve(rows: np.ndarray, resamples: int, seed: int) -> MeanCurve:
    """The mean of finite `rows` [N, S], N at least 1."""
    mean = rows.mean(axis=0)
    low, high = interval(bootstrap_means(rows, resamples, seed)) if resamples else (mean, mean)
    return MeanCurve(mean, low, high, len(rows))


def rank_correlation(x: Sequence[float], y: Sequence[float]) -> float:
    """Spearman's, values that are equal but for rounding at the mean of their ranks.

    NaN for fewer than two, or where one side has no order.
    """
    if len(x) < 2:
        return float("nan")
    first, second = (ranks - ranks.mean() for ranks in (_ranks(x), _ranks(y)))
    spread = float(np.sqrt((first @ first) * (second @ second)))
    return float(first @ second) / spread if spread else float("nan")


def _ranks(values: Iterable[float]) -> np.ndarray:
    numbers = np.asarray(list(values), float)
    gap = numbers[:, None] - numbers  # [N, N]
    margin = ROUNDING * np.maximum(np.abs(numbers[:, None]), np.abs(numbers))
    return ((gap > margin).sum(axis=1) + (gap >= -margin).sum(axis=1) - 1) / 2


def _by_sample(table: pa.Table, perturbation: str, variant: Variant) -> dict[str, list[float]]:
    """AREAS of each sample."""
    kept = _of(table, perturbation, variant)
    area: dict[str, dict[str, float]] = {}
    for name, order, value in zip(*(kept[c].to_pylist() for c in ("sample_id", "order", "area")), strict=True):
        area.setdefault(name, {})[order] = value
    return {name: [own["lerf"] - own["morf"], own["morf"], own["lerf"]] for name, own in area.items()}


def _of(table: pa.Table, perturbation: str, variant: Variant) -> pa.Table:
    wanted = {"perturbation": perturbation, "explanation": variant[0], "embedding": variant[1]}
    keep = [pc.equal(table[name], value) for name, value in wanted.items()]
    areas = pc.is_in(table["order"], pa.array(ORDERS))
    return table.filter(pc.and_(pc.and_(keep[0], keep[1]), pc.and_(keep[2], areas)))
