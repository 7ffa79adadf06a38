"""Areas under deletion curves over samples: means, intervals, paired tests, mean curves, and agreement of rankings.

Each table has the schema CURVES and holds one cell (model, task, precision, method). A variant is the (explanation,
embedding) of relevance. Shapes: N samples, M methods, S points of a grid.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from closelook.evaluation.scoring.faithfulness.flips import ORDERS, SCORES, TARGET_LOGIT
from closelook.evaluation.scoring.faithfulness.scores import MEASURES, Summary, paired, summarise
from closelook.evaluation.scoring.intervals import (
    NO_CLUSTERS,
    Bounds,
    ClusterNumbers,
    Clusters,
    Resampling,
    cluster_numbers,
    cluster_sums,
    mean_intervals,
)
from closelook.evaluation.scoring.statistics import Comparison, bootstrap_means, finite_interval, sign_flip_p
from closelook.lrp_core.neurons.near_ties import ROUNDING
from closelook.lrp_core.records.explained import NONE

AREA_COLUMNS = ["sample_id", "explanation", "embedding", "perturbation", "order", "score", "area"]
CURVE_COLUMNS = ["sample_id", "explanation", "embedding", "perturbation", "order", "score", "removed", "logit"]
AREAS = tuple(MEASURES)[:3]  # delta_area, area_morf, area_lerf
GRID = np.linspace(0, 1, 41)  # shares of the tokens at which curves of different lengths are averaged
#: Explanations and embeddings by preference, for methods with several variants. Token embeddings (partial) come first,
#: since deletion changes tokens while positions stay.
_PREFERRED = (("target", "log_prob", "contrastive", "none"), ("partial", "full", "none"))

Variant = tuple[str, str]  # explanation, embedding
Variants = Mapping[str, Variant]  # by method
ByMethod = Mapping[str, Mapping[str, float]]  # numbers by method and sample
CurveTables = Mapping[str, pa.Table]  # curves by method
Samples = dict[str, dict[str, dict[str, Any]]]  # rows of a method by sample and order


@dataclass(frozen=True)
class Areas:
    """Areas of all methods for one model, task, precision and perturbation."""

    summaries: Mapping[tuple[str, str], Summary]  # by (method, measure), each over all samples of the method
    variants: Variants  # the variant of each method that is shown
    comparison: Comparison | None  # on the samples that all methods have
    p_zero: Mapping[str, float]  # p value of each method for a `delta_area` of zero, not adjusted for several methods
    deltas: ByMethod  # `delta_area` by method and sample, of finite curves


@dataclass(frozen=True)
class JointScores:
    """Evidence scores and faithfulness of the same relevance, on the samples that all methods have."""

    methods: tuple[str, ...]
    evidence: np.ndarray  # [N, M] the evidence metric, in its unit
    delta: np.ndarray  # [N, M] `delta_area`
    clusters: ClusterNumbers = None  # [N] numbers of the samples' clusters

    def agreement(self, without: Collection[str], resampling: Resampling) -> Agreement:
        """Spearman's correlation between the methods' mean evidence scores and mean areas, except of `without`."""
        kept = [at for at, method in enumerate(self.methods) if method not in without]
        return agreement_of(self.evidence[:, kept], self.delta[:, kept], resampling.within(self.clusters))


@dataclass(frozen=True)
class Agreement:
    """Spearman's correlation of two rankings of methods, with its 95 % bootstrap interval over samples."""

    value: float  # NaN if all methods of a ranking are equal
    low: float
    high: float
    methods: int
    n: int  # samples


def agreement_of(first: np.ndarray, second: np.ndarray, resampling: Resampling) -> Agreement:
    """Spearman's correlation over methods between the means of two scores, `first` and `second` [N, M].

    Both scores are of the same samples.
    """
    sides = np.concatenate([first, second], axis=1)  # [N, 2 M]
    drawn = bootstrap_means(sides, resampling) if len(sides) else np.empty((0, sides.shape[1]))
    correlations = np.array([_between_halves(means) for means in drawn])
    low, high = finite_interval(correlations)
    value = _between_halves(sides.mean(axis=0)) if len(sides) else np.nan
    return Agreement(value, low, high, first.shape[1], len(sides))


def under_both(first: Areas, second: Areas, without: Collection[str]) -> tuple[list[str], np.ndarray]:
    """ΔA under two perturbations: (sample ids [N], ΔA [N, M, 2]).

    The M methods have curves under both perturbations and are not in `without`; the N samples have ΔA under both
    perturbations for all of them.
    """
    values = {}
    for method, deltas in first.deltas.items():
        others = second.deltas.get(method, {})
        common = {name: np.array([delta, others[name]]) for name, delta in deltas.items() if name in others}
        if common and method not in without:
            values[method] = common
    ids, stacked = on_common_samples(values)
    return ids, stacked.reshape(len(ids), len(values), 2)


@dataclass(frozen=True)
class MeanCurve:
    """The mean output [S] over `n` samples at each share of removed tokens, with the ends of its 95 % interval [S].

    The shares are GRID, or the SHARES of NormXLogit.
    """

    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray
    n: int


def areas_of(
    tables: CurveTables,
    perturbation: str,
    resampling: Resampling,
    clusters: Clusters = NO_CLUSTERS,
    chance: Collection[str] = (),
) -> Areas:
    """Areas of methods, from their `tables` of AREA_COLUMNS by method.

    Samples whose areas are not finite are left out and counted. `clusters` maps samples that share a cluster to its
    name. Methods of `chance` rank at random: as LeRF is MoRF reversed, both of their orders are random. Their ΔA is 0
    by definition, without an interval, and both areas are the mean of the two.
    """
    variants, values = _areas_by_sample(tables, perturbation, chance)
    summaries, p_zero, deltas = {}, {}, {}
    for method, samples in values.items():
        at_random = method in chance
        columns = np.array(list(samples.values())).T  # [3, N]
        drawn = resampling.within(cluster_numbers(clusters, list(samples)))
        if not at_random:
            p_zero[method] = _p_zero(columns[0], drawn)
        deltas[method] = {name: float(areas[0]) for name, areas in samples.items() if np.isfinite(areas[0])}
        for measure, column in zip(AREAS, columns, strict=True):
            summary = summarise(column, drawn)
            if at_random and measure == AREAS[0]:
                summary = replace(summary, low=np.nan, high=np.nan)
            summaries[method, measure] = summary
    ids, stacked = on_common_samples(values)  # [N, M, 3]
    drawn = resampling.within(cluster_numbers(clusters, ids))
    compared = paired(stacked, tuple(values), AREAS, drawn) if ids else None
    return Areas(summaries, variants, compared, p_zero, deltas)


def joint_scores(
    evidence: ByMethod,
    tables: CurveTables,
    perturbation: str,
    clusters: Clusters = NO_CLUSTERS,
    chance: Collection[str] = (),
) -> JointScores:
    """Joins `evidence` scores, by method and sample, with the areas in `tables` of AREA_COLUMNS, by method.

    Samples without an evidence score or without a finite area are left out. `clusters` maps samples that share a
    cluster to its name; `chance` are the methods that rank at random (see `areas_of`).
    """
    _, areas = _areas_by_sample({name: tables[name] for name in evidence}, perturbation, chance)
    values = {}
    for method, samples in areas.items():
        scores = evidence[method]
        deltas = {name: delta for name, (delta, *_) in samples.items() if name in scores and np.isfinite(delta)}
        if deltas:
            values[method] = {name: np.array([scores[name], delta]) for name, delta in deltas.items()}
    ids, stacked = on_common_samples(values)
    stacked = stacked.reshape(len(ids), len(values), 2)
    return JointScores(tuple(values), stacked[..., 0], stacked[..., 1], cluster_numbers(clusters, ids))


def _between_halves(means: np.ndarray) -> float:
    """Spearman's correlation between the first M of `means` [2 M] and the last M."""
    first, second = np.split(means, 2)
    return rank_correlation(first.tolist(), second.tolist())


def by_sample(
    tables: CurveTables, perturbation: str, orders: Sequence[str], columns: Sequence[str]
) -> tuple[Variants, dict[str, Samples]]:
    """(the shown variant of each method, its rows by method, sample and order); methods without rows are left out.

    `tables` have the schema CURVES; rows are of one `perturbation` and of `orders`, and hold `columns`. Raises
    ValueError if a table has curves of several scores.
    """
    variants, rows = {}, {}
    for method, table in tables.items():
        variant = shown_variant(table)
        if variant is None:
            continue
        samples: Samples = defaultdict(dict)
        kept = _selected(table, perturbation, variant, orders).select(["sample_id", "order", *columns])
        for row in kept.to_pylist():
            if row["order"] in samples[row["sample_id"]]:
                raise ValueError(f"{method}: curves of several scores; choose a score with `of_score`")
            samples[row["sample_id"]][row["order"]] = row
        if samples:
            variants[method], rows[method] = variant, dict(samples)
    return variants, rows


def on_common_samples(values: Mapping[str, Mapping[str, np.ndarray | float]]) -> tuple[list[str], np.ndarray]:
    """(ids [N] of the samples that all methods have, their values [N, M, ...]), from `values` by method and sample."""
    ids = sorted(set.intersection(*map(set, values.values()))) if values else []
    return ids, np.array([[of_method[name] for of_method in values.values()] for name in ids])


def _p_zero(values: np.ndarray, resampling: Resampling) -> float:
    """The p value of a sign-flip test that the finite `values` [N] are symmetric about zero; 1 without values."""
    known = np.isfinite(values)
    finite = values[known]
    if not len(finite) or not resampling.resamples:
        return 1.0
    against_zero = np.stack([finite, np.zeros_like(finite)], axis=1)  # [N, 2]
    against_zero, _ = cluster_sums(against_zero, resampling.among(known).clusters)
    return float(sign_flip_p(against_zero, resampling.seed)[0, 1])


def of_score(table: pa.Table, score: str) -> pa.Table:
    """The curves of a table that follow `score`, which is TARGET_LOGIT or CONTRAST."""
    return table.filter(pc.field("score") == score)


def scores_of(tables: Iterable[pa.Table]) -> list[str]:
    """The scores that the curves in `tables` follow, in the order of SCORES; [TARGET_LOGIT] if there are none.

    Curves of relevance that explains no number, such as random relevance, do not count.
    """
    followed: set[str] = set()
    for table in tables:
        explained = table.filter(pc.field("explanation") != NONE)
        followed |= set(explained["score"].unique().to_pylist())
    return [score for score in SCORES if score in followed] or [TARGET_LOGIT]


def shown_variant(table: pa.Table) -> Variant | None:
    """The variant that tables and figures show; None for an empty table."""
    rows = table.group_by(["explanation", "embedding"]).aggregate([]).to_pylist()
    return preferred([(row["explanation"], row["embedding"]) for row in rows])


def preferred(variants: Iterable[Variant]) -> Variant | None:
    """The variant that is shown for a method with several, by the order of _PREFERRED; None without variants.

    >>> preferred([("contrastive", "partial"), ("target", "full"), ("target", "partial")])
    ('target', 'partial')
    """
    explanations, embeddings = _PREFERRED

    def rank(variant: Variant) -> tuple[int, int]:
        """The indices of the explanation and the embedding in _PREFERRED."""
        return explanations.index(variant[0]), embeddings.index(variant[1])

    return min(variants, key=rank, default=None)


def mean_curves(
    table: pa.Table,
    perturbation: str,
    variant: Variant,
    resampling: Resampling,
    clusters: Clusters = NO_CLUSTERS,
) -> dict[str, MeanCurve]:
    """Mean curves by order ("morf", "lerf"), and of their difference as "delta"; empty if no sample is finite.

    `table` holds CURVE_COLUMNS; curves are interpolated at GRID. `clusters` maps samples that share a cluster to its
    name.
    """
    kept = _selected(table, perturbation, variant, ORDERS)
    values = {}
    for order in ORDERS:
        curves = kept.filter(pc.equal(kept["order"], order))
        points = zip(curves["removed"].to_pylist(), curves["logit"].to_pylist(), strict=True)
        values[order] = np.array([np.interp(GRID, np.divide(k, k[-1]), logit) for k, logit in points])  # [N, S]
    values["delta"] = values["lerf"] - values["morf"]
    finite = np.isfinite(values["delta"]).all(axis=-1)
    if not finite.any():
        return {}
    numbers = cluster_numbers(clusters, curves["sample_id"].filter(pa.array(finite)).to_pylist())
    return {name: mean_curve(rows[finite], resampling.within(numbers)) for name, rows in values.items()}


def mean_curve(rows: np.ndarray, resampling: Resampling, bounds: Bounds = None) -> MeanCurve:
    """The mean of finite `rows` [N, S], N at least 1, with its interval; without resamples its ends are the mean.

    `bounds` is the range of the values, if they have one.
    """
    mean = rows.mean(axis=0)
    low, high = mean_intervals(rows, resampling, bounds) if resampling.resamples else (mean, mean)
    return MeanCurve(mean, low, high, len(rows))


def rank_correlation(x: Sequence[float], y: Sequence[float]) -> float:
    """Spearman's rank correlation; values that are equal up to rounding share the mean of their ranks.

    NaN for fewer than two values, and if all values of `x` or of `y` are equal.
    """
    ranks = np.stack([ranks_of(x), ranks_of(y)])
    if len(x) < 2 or not np.ptp(ranks, axis=1).all():
        return float("nan")
    return float(np.corrcoef(ranks)[0, 1])


def ranks_of(values: Iterable[float]) -> np.ndarray:
    """Ranks [T] from 0, ascending; values that are equal up to rounding share the mean of their ranks."""
    # Ties of a value have the ranks from (values below) to (values below or equal) - 1: their mean is the rank.
    numbers = np.asarray(list(values), float)
    gap = numbers[:, None] - numbers  # [T, T]
    margin = ROUNDING * np.maximum(np.abs(numbers[:, None]), np.abs(numbers))
    return ((gap > margin).sum(axis=1) + (gap >= -margin).sum(axis=1) - 1) / 2


def _areas_by_sample(
    tables: CurveTables, perturbation: str, chance: Collection[str]
) -> tuple[Variants, dict[str, dict[str, np.ndarray]]]:
    """(the shown variant of each method, its AREAS [3] by sample).

    Both orders of methods of `chance` are random, so that their ΔA is 0 and each area is the mean of the two.
    """
    variants, rows = by_sample(tables, perturbation, ORDERS, ["area"])
    values: dict[str, dict[str, np.ndarray]] = {method: {} for method in rows}
    for method, samples in rows.items():
        for name, orders in samples.items():
            morf, lerf = orders["morf"]["area"], orders["lerf"]["area"]
            areas = np.array([lerf - morf, morf, lerf], float)
            values[method][name] = np.array([0.0, 0.5, 0.5]) * (morf + lerf) if method in chance else areas
    return variants, values


def _selected(table: pa.Table, perturbation: str, variant: Variant, orders: Sequence[str]) -> pa.Table:
    """The rows of a table with this perturbation, variant and one of these orders."""
    kept = (pc.field("perturbation") == perturbation) & pc.field("order").isin(orders)
    return table.filter(kept & (pc.field("explanation") == variant[0]) & (pc.field("embedding") == variant[1]))
