"""The change of each metric from one run to another, by cell, with tests on paired samples."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from closelook.evaluation.report.results import CellKey, Variant, variant_rank
from closelook.evaluation.schema import SCORES_SAMPLES
from closelook.evaluation.scoring.intervals import cluster_numbers, cluster_sums
from closelook.evaluation.scoring.metrics import METRICS
from closelook.evaluation.scoring.samples import VARIANT
from closelook.evaluation.scoring.statistics import holm_adjusted, sign_flip_p
from closelook.jobs.plan.clusters import clusters_of
from closelook.jobs.results import Run

SEED = 0  # of sign flips


@dataclass(frozen=True)
class Change:
    """A metric of one cell in both runs, in the same variant and on the samples that both predict rightly."""

    model: str
    task: str
    dtype: str
    method: str
    metric: str
    n: int
    first: float
    second: float
    p: float  # of a sign-flip test on paired samples or clusters, adjusted by Holm's method over all cells
    same_key: bool  # True if both runs hold the same relevance: then only the metric can differ

    @property
    def difference(self) -> float:
        """The second run's mean minus the first's."""
        return self.second - self.first


def changes(first: Run, second: Run, metric: str) -> list[Change]:
    """The change in `metric` of every cell that has samples which both runs scored and predict rightly.

    Cells are in the order of the first run. Of several variants that both runs have, the default is compared.
    """
    first_keys, second_keys = keys_of(first), keys_of(second)
    first_tables, second_tables = _tables(first, metric), _tables(second, metric)
    compared, p_values = [], []
    for cell, table in first_tables.items():
        both = [table, second_tables.get(cell, table.slice(0, 0))]
        shared = set.intersection(*map(_variants, both))
        if not shared:
            continue
        values, others = (_values(of_run, min(shared, key=variant_rank), metric) for of_run in both)
        common = sorted(values.keys() & others.keys())
        if common:
            pairs = np.array([(values[sample], others[sample]) for sample in common])  # [N, 2]
            compared.append((cell, pairs))
            clusters = clusters_of(first.ledger, cell.task) or clusters_of(second.ledger, cell.task)
            numbers = cluster_numbers(clusters, common)
            sums, _ = cluster_sums(pairs, numbers)  # signs of a cluster change together
            p_values.append(float(sign_flip_p(sums, SEED)[0, 1]))
    result = []
    for (cell, pairs), p in zip(compared, holm_adjusted(p_values), strict=True):
        means = pairs.mean(axis=0) * METRICS[metric].scale
        same_key = first_keys.get(cell) == second_keys.get(cell)
        result.append(Change(*cell, metric, len(pairs), float(means[0]), float(means[1]), p, same_key))
    return result


def keys_of(run: Run) -> dict[CellKey, str]:
    """The key of the relevance of every cell of the run."""
    return {CellKey(*artifact.columns): artifact.key for artifact, _ in run.current("relevance")}


def _tables(run: Run, metric: str) -> dict[CellKey, pa.Table]:
    """The scores of every sample by cell, for cells that are scored by the metric."""
    tables = run.read_each("scores", SCORES_SAMPLES, folder=1)
    return {cell: table for cell, table in tables if metric in table.column_names}


def _variants(table: pa.Table) -> set[Variant]:
    """The variants in which samples are scored."""
    return {Variant(*row.values()) for row in table.group_by(VARIANT).aggregate([]).to_pylist()}


def _values(table: pa.Table, variant: Variant, metric: str) -> dict[str, float]:
    """By sample id, the metric of each rightly predicted sample in one variant."""
    keep = pc.and_(table["correct"], pc.is_valid(table[metric]))
    for name, value in zip(VARIANT, variant, strict=True):
        keep = pc.and_(keep, pc.equal(table[name], value))
    rows = table.filter(keep)
    return dict(zip(rows["sample_id"].to_pylist(), rows[metric].to_pylist(), strict=True))
