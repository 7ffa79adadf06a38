"""The scores of two runs side by side, with paired tests."""

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
    p: float  # paired signs, after Holm over all changes
    same_key: bool  # made of the same numbers, so that no difference can be but of the metric

    @property
    def difference(self) -> float:
        return self.second - self.first


def changes(first: Run, second: Run, metric: str) -> list[Change]:
    """The change in `metric` of every cell with samples that both runs scored and predict rightly.

    Cells are in the order of the first run. p values are adjusted for their number (Holm).
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
    """The key of every cell's relevance."""
    return {CellKey(a.model, a.task, a.dtype, a.method): a.key for a, _ in run.current("relevance")}


def _values(run: Run, metric: str) -> dict[CellKey, dict[str, float]]:
    """The metric of every rightly predicted sample in each cell's first variant, by sample."""
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
