"""The change of each metric from one run to another, by cell, with tests on paired samples."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow.compute as pc

from evaluation.report.results import CellKey, Variant, variant_rank
from evaluation.schema import SCORES_SAMPLES
from evaluation.scoring.metrics import METRICS
from evaluation.scoring.samples import VARIANT
from evaluation.scoring.statistics import holm_adjusted, sign_flip_p
from jobs.results import Run

FLIPS, SEED = 10_000, 0


@dataclass(frozen=True)
class Change:
    """A metric of one cell in both runs, on the samples that both predict rightly."""

    model: str
    task: str
    dtype: str
    method: str
    metric: str
    n: int
    first: float
    second: float
    p: float  # of a sign-flip test on paired samples, adjusted by Holm's method over all cells
    same_key: bool  # True if both runs hold the same relevance: then only the metric can differ

    @property
    def difference(self) -> float:
        """The second run's mean minus the first's."""
        return self.second - self.first


def changes(first: Run, second: Run, metric: str) -> list[Change]:
    """The change in `metric` of every cell that has samples which both runs scored and predict rightly.

    Cells are in the order of the first run.
    """
    first_keys, second_keys = keys_of(first), keys_of(second)
    first_values, second_values = _values(first, metric), _values(second, metric)
    compared, p_values = [], []
    for cell, values in first_values.items():
        others = second_values.get(cell, {})
        common = sorted(values.keys() & others.keys())
        if common:
            pairs = np.array([(values[sample], others[sample]) for sample in common])  # [N, 2]
            compared.append((cell, pairs))
            of_pairs = sign_flip_p(pairs[:, :, None], FLIPS, SEED)  # [2, 2, 1]: the runs stand for methods
            p_values.append(float(of_pairs[0, 1, 0]))
    result = []
    for (cell, pairs), p in zip(compared, holm_adjusted(p_values), strict=True):
        means = pairs.mean(axis=0) * METRICS[metric].scale
        same_key = first_keys.get(cell) == second_keys.get(cell)
        result.append(Change(*cell, metric, len(pairs), float(means[0]), float(means[1]), p, same_key))
    return result


def keys_of(run: Run) -> dict[CellKey, str]:
    """The key of the relevance of every cell of the run."""
    return {CellKey(*artifact.columns): artifact.key for artifact, _ in run.current("relevance")}


def _values(run: Run, metric: str) -> dict[CellKey, dict[str, float]]:
    """By cell and sample id, the metric of each rightly predicted sample, in the first variant of the cell."""
    values: dict[CellKey, dict[str, float]] = {}
    for cell, table in run.read_each("scores", SCORES_SAMPLES, folder=1):
        if metric not in table.column_names:
            continue
        columns = (table[name].to_pylist() for name in VARIANT)
        first = min({Variant(*row) for row in zip(*columns, strict=True)}, key=variant_rank)
        keep = pc.and_(table["correct"], pc.is_valid(table[metric]))
        for name, value in zip(VARIANT, first, strict=True):
            keep = pc.and_(keep, pc.equal(table[name], value))
        rows = table.filter(keep)
        values[cell] = dict(zip(rows["sample_id"].to_pylist(), rows[metric].to_pylist(), strict=True))
    return values
