"""Areas under faithfulness curves over samples: means, intervals, paired tests, mean curves, and agreement of rankings.

Tables are of the schema of curves, those of one cell (model, task, precision, method) each. Shapes: N samples, M
methods, S points of a grid.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from evaluation.scoring.faithfulness import MEASURES, Summary, paired, summarise
from evaluation.scoring.flips import ORDERS, SCORES, TARGET_LOGIT
from evaluation.scoring.intervals import cluster_sums, mean_intervals, numbered
from evaluation.scoring.statistics import FLIPS, Comparison, bootstrap_means, finite_interval, sign_flip_p
from lrp_core.explained import NONE
from lrp_core.near_ties import ROUNDING

AREA_COLUMNS = ["sample_id", "explanation", "embedding", "perturbation", "order", "score", "area"]
CURVE_COLUMNS = ["explanation", "embedding", "perturbation", "order", "score", "removed", "logit"]
AREAS = tuple(MEASURES)[:3]  # delta_area, area_morf, area_lerf
GRID = np.linspace(0, 1, 41)  # shares of the tokens at which curves of different lengths are averaged
#: Of several variants of a method, the first: what explains the target, and token embeddings, since those go while
#: positions stay.
_PREFERRED = (("target", "log_prob", "contrastive", "none"), ("partial", "full", "none"))

Variant = tuple[str, str]  # explanation, embedding


@dataclass(frozen=True)
class Areas:
    """Methods on the samples of one model, task, precision and perturbation."""

    summaries: Mapping[tuple[str, str], Summary]  # by (method, measure), each over all samples that it has
    variants: Mapping[str, Variant]  # of each method the one that is told
    comparison: Comparison | None  # on the samples that all methods have
    p_zero: Mapping[str, float]  # of each method, that `delta_area` is not zero, not adjusted for the number of methods
    deltas: Mapping[str, Mapping[str, float]]  # `delta_area` by method and sample, of finite curves


@dataclass(frozen=True)
class Beside:
    """Evidence and faithfulness of the same relevance, on the samples that all methods have."""

    methods: tuple[str, ...]
    evidence: np.ndarray  # [N, M] of the leading metric, in its unit
    delta: np.ndarray  # [N, M] `delta_area`
    clusters: np.ndarray | None = None  # [N], numbers of the samples' clusters

    def agreement(self, without: Collection[str], resamples: int, seed: int) -> Agreement:
        """Spearman's correlation of the means of methods, those in `without` left out."""
        kept = [at for at, method in enumerate(self.methods) if method not in without]
        return agreement_of(self.evidence[:, kept], self.delta[:, kept], resamples, seed, self.clusters)


@dataclass(frozen=True)
class Agreement:
    """Spearman's correlation of two rankings of methods, with its 95 % bootstrap interval over samples."""

    value: float  # NaN where a ranking has no order
    low: float
    high: float
    methods: int
    n: int  # samples


def agreement_of(
    one: np.ndarray, other: np.ndarray, resamples: int, seed: int, clusters: np.ndarray | None = None
) -> Agreement:
    """Spearman's correlation of the means of methods on two sides [N, M], each of the same samples.

    `clusters` [N] are numbers of the samples' clusters.
    """
    sides = np.concatenate([one, other], axis=1)  # [N, 2 M]
    drawn = bootstrap_means(sides, resamples, seed, clusters) if len(sides) else np.empty((0, sides.shape[1]))
    correlations = np.array([_between_halves(means) for means in drawn])
    low, high = finite_interval(correlations)
    value = _between_halves(sides.mean(axis=0)) if len(sides) else np.nan
    return Agreement(value, low, high, one.shape[1], len(sides))


def under_both(one: Areas, other: Areas, without: Collection[str]) -> tuple[list[str], np.ndarray]:
    """(samples [N], ΔA [N, M, 2]) of methods with curves under both ways, on the samples that all of them have there.

    Methods in `without` are left out.
    """
    values = {}
    for method, deltas in one.deltas.items():
        others = other.deltas.get(method, {})
        common = {name: np.array([delta, others[name]]) for name, delta in deltas.items() if name in others}
        if common and method not in without:
            values[method] = common
    ids, stacked = together(values)
    return ids, stacked.reshape(len(ids), len(values), 2)


@dataclass(frozen=True)
class MeanCurve:
    """The mean output at GRID or SHARES of tokens gone, over `n` samples, with ends of the 95 % interval [S]."""

    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray
    n: int


def areas_of(
    tables: Mapping[str, pa.Table],
    perturbation: str,
    resamples: int,
    seed: int,
    clusters: Mapping[str, str] = MappingProxyType({}),
    chance: Collection[str] = (),
) -> Areas:
    """Areas of methods, from their tables of AREA_COLUMNS. Samples that are not finite are left out and counted.

    `clusters` names those of samples that share one. Methods of `chance` rank at random: as LeRF is MoRF reversed, both
    are random orders. Their ΔA is 0, and either area the mean of both.
    """
    variants, rows = by_sample(tables, perturbation, ORDERS, ["area"])
    values = {
        method: {name: _areas(own, method in chance) for name, own in samples.items()}
        for method, samples in rows.items()
    }
    summaries, p_zero, deltas = {}, {}, {}
    for method, samples in values.items():
        columns, of = np.array(list(samples.values())).T, numbered(clusters, list(samples))  # [3, N], [N]
        if method not in chance:
            p_zero[method] = _p_zero(columns[0], of, resamples, seed)
        known = zip(samples, columns[0].tolist(), strict=True)
        deltas[method] = {name: delta for name, delta in known if np.isfinite(delta)}
        for measure, column in zip(AREAS, columns, strict=True):
            summary = summarise(column, resamples, seed, clusters=of)
            is_known = measure == AREAS[0] and method in chance
            summaries[method, measure] = replace(summary, low=np.nan, high=np.nan) if is_known else summary
    ids, stacked = together(values)  # [N, M, 3]
    compared = paired(stacked, tuple(values), AREAS, resamples, seed, numbered(clusters, ids)) if ids else None
    return Areas(summaries, variants, compared, p_zero, deltas)


def beside(
    evidence: Mapping[str, Mapping[str, float]],
    tables: Mapping[str, pa.Table],
    perturbation: str,
    clusters: Mapping[str, str] = MappingProxyType({}),
    chance: Collection[str] = (),
) -> Beside:
    """`evidence` by method and sample beside the areas of `tables` (of AREA_COLUMNS); samples without either are left
    out. `clusters` names those of samples that share one, `chance` methods that rank at random."""
    _, rows = by_sample({name: tables[name] for name in evidence}, perturbation, ORDERS, ["area"])
    values = {}
    for method, samples in rows.items():
        deltas = {name: _areas(sample, method in chance)[0] for name, sample in samples.items()}
        known = {name: delta for name, delta in deltas.items() if name in evidence[method] and np.isfinite(delta)}
        if known:
            values[method] = {name: np.array([evidence[method][name], delta]) for name, delta in known.items()}
    ids, stacked = together(values)
    stacked = stacked.reshape(len(ids), len(values), 2)
    return Beside(tuple(values), stacked[..., 0], stacked[..., 1], numbered(clusters, ids))


def _between_halves(means: np.ndarray) -> float:
    """The rank correlation of the first half of `means` [2 M] with the second."""
    first, second = np.split(means, 2)
    return rank_correlation(first.tolist(), second.tolist())


def by_sample(
    tables: Mapping[str, pa.Table], perturbation: str, orders: Sequence[str], columns: Sequence[str]
) -> tuple[dict[str, Variant], dict[str, dict[str, dict[str, dict[str, Any]]]]]:
    """The variant of each method that is shown, and its rows by sample and order; of methods with any."""
    variants, rows = {}, {}
    for method, table in tables.items():
        variant = told(table)
        samples: dict[str, dict[str, dict[str, Any]]] = defaultdict(dict)
        if variant is not None:
            kept = _of(table, perturbation, variant, orders).select(["sample_id", "order", *columns])
            for row in kept.to_pylist():
                if row["order"] in samples[row["sample_id"]]:
                    raise ValueError(f"{method}: curves of several scores; take those of one by `of_score`")
                samples[row["sample_id"]][row["order"]] = row
        if variant is not None and samples:
            variants[method], rows[method] = variant, dict(samples)
    return variants, rows


def together(values: Mapping[str, Mapping[str, np.ndarray]]) -> tuple[list[str], np.ndarray]:
    """The samples that all methods have [N], and their values [N, M, ...], from `values` by method and sample."""
    ids = sorted(set.intersection(*map(set, values.values()))) if values else []
    return ids, np.array([[own[name] for own in values.values()] for name in ids])


def _p_zero(values: np.ndarray, clusters: np.ndarray | None, resamples: int, seed: int) -> float:
    """The p value of finite `values` [N] having either sign alike, a cluster's together; 1 where there are none."""
    known = np.isfinite(values)
    finite = values[known]
    beside_zero = np.stack([finite, np.zeros_like(finite)], axis=1)[..., None]  # [N, 2, 1]
    beside_zero, _ = cluster_sums(beside_zero, None if clusters is None else clusters[known])
    return float(sign_flip_p(beside_zero, FLIPS * resamples, seed)[0, 1, 0]) if len(finite) and resamples else 1.0


def of_score(table: pa.Table, score: str) -> pa.Table:
    """The curves of a table that follow one number, TARGET_LOGIT or CONTRAST."""
    return table.filter(pc.field("score") == score)


def scores_of(tables: Iterable[pa.Table]) -> list[str]:
    """The numbers that some relevance explains whose curves follow them; the target's logit where there are none."""
    followed: set[str] = set()
    for table in tables:
        own = table.filter(pc.field("explanation") != NONE)
        followed |= set(own["score"].unique().to_pylist())
    return [score for score in SCORES if score in followed] or [TARGET_LOGIT]


def told(table: pa.Table) -> Variant | None:
    """The variant that tables and figures show; None of an empty table."""
    rows = table.group_by(["explanation", "embedding"]).aggregate([]).to_pylist()
    return preferred([(row["explanation"], row["embedding"]) for row in rows])


def preferred(variants: Iterable[Variant]) -> Variant | None:
    """The one of a method's variants that stands for it; None of none."""
    explanations, embeddings = _PREFERRED
    return min(variants, key=lambda one: (explanations.index(one[0]), embeddings.index(one[1])), default=None)


def mean_curves(
    table: pa.Table,
    perturbation: str,
    variant: Variant,
    resamples: int,
    seed: int,
    clusters: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, MeanCurve]:
    """Mean curves by order, and their difference as `delta`, from a table of CURVE_COLUMNS; of finite samples.

    `clusters` names those of samples that share one; then `sample_id` is among the columns.
    """
    kept = _of(table, perturbation, variant, ORDERS)
    values = {}
    for order in ORDERS:
        own = kept.filter(pc.equal(kept["order"], order))
        pairs = zip(own["removed"].to_pylist(), own["logit"].to_pylist(), strict=True)
        values[order] = np.array([np.interp(GRID, np.divide(k, k[-1]), logit) for k, logit in pairs])  # [N, S]
    values["delta"] = values["lerf"] - values["morf"]
    finite = np.isfinite(values["delta"]).all(axis=-1)
    if not finite.any():
        return {}
    of = numbered(clusters, own["sample_id"].filter(pa.array(finite)).to_pylist()) if clusters else None
    return {name: mean_curve(rows[finite], resamples, seed, None, of) for name, rows in values.items()}


def mean_curve(
    rows: np.ndarray,
    resamples: int,
    seed: int,
    bounds: tuple[float, float] | None = None,
    clusters: np.ndarray | None = None,
) -> MeanCurve:
    """The mean of finite `rows` [N, S], N at least 1, which lie within `bounds` if there are any.

    `clusters` [N] are numbers of the samples' clusters.
    """
    mean = rows.mean(axis=0)
    low, high = mean_intervals(rows, resamples, seed, bounds, clusters) if resamples else (mean, mean)
    return MeanCurve(mean, low, high, len(rows))


def rank_correlation(x: Sequence[float], y: Sequence[float]) -> float:
    """Spearman's, values that are equal but for rounding at the mean of their ranks.

    NaN for fewer than two, or where one side has no order.
    """
    if len(x) < 2:
        return float("nan")
    first, second = (ranks - ranks.mean() for ranks in (ranks_of(x), ranks_of(y)))
    spread = float(np.sqrt((first @ first) * (second @ second)))
    return float(first @ second) / spread if spread else float("nan")


def ranks_of(values: Iterable[float]) -> np.ndarray:
    """Ranks [T], values that are equal but for rounding at the mean of their ranks."""
    numbers = np.asarray(list(values), float)
    gap = numbers[:, None] - numbers  # [N, N]
    margin = ROUNDING * np.maximum(np.abs(numbers[:, None]), np.abs(numbers))
    return ((gap > margin).sum(axis=1) + (gap >= -margin).sum(axis=1) - 1) / 2


def _areas(rows: Mapping[str, Mapping[str, float]], at_random: bool) -> np.ndarray:
    """AREAS of a sample [3]; of orders that are random, both of them."""
    own = {order: row["area"] for order, row in rows.items()}
    if at_random:
        return np.array([0.0, 0.5, 0.5]) * (own["morf"] + own["lerf"])
    return np.array([own["lerf"] - own["morf"], own["morf"], own["lerf"]], float)


def _of(table: pa.Table, perturbation: str, variant: Variant, orders: Sequence[str]) -> pa.Table:
    kept = (pc.field("perturbation") == perturbation) & pc.field("order").isin(orders)
    return table.filter(kept & (pc.field("explanation") == variant[0]) & (pc.field("embedding") == variant[1]))
