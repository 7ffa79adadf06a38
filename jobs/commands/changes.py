"""Scores of two runs, place by place, with paired tests."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow.compute as pc

from evaluation.report.results import Place, Variant, variant_rank
from evaluation.schema import SCORES_SAMPLES
from evaluation.scoring.metrics import METRICS
from evaluation.scoring.samples import VARIANT
from evaluation.scoring.statistics import sign_flip_p, step_down
from jobs.notebook.run import Run

FLIPS, SEED = 10_000, 0


@dataclass(frozen=True)
class Change:
    """A metric of one place in both runs, on the samples that both predict rightly."""

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


def changes(first: Run, second: Run, metric: str) -> list[Change]:
    """The change at every place that both runs scored by `metric`, in the order of the first."""
    keys = [keys_of(run) for run in (first, second)]
    values = [_values(run, metric) for run in (first, second)]
    scale = METRICS[metric].scale
    compared = []
    for place in values[0]:
        if place not in values[1]:
            continue
        one, other = values[0][place], values[1][place]
        common = sorted(set(one) & set(other))
        if common:
            pairs = np.array([(one[name], other[name]) for name in common])  # [N, 2]
            p = float(sign_flip_p(pairs[:, :, None], FLIPS, SEED)[0, 1, 0])
            compared.append((place, pairs.mean(axis=0) * scale, len(common), p))
    adjusted = step_down([p for *_, p in compared])
    return [
        Change(*place, metric, n, float(means[0]), float(means[1]), p, keys[0].get(place) == keys[1].get(place))
        for (place, means, n, _), p in zip(compared, adjusted, strict=True)
    ]


def keys_of(run: Run) -> dict[Place, str]:
    """The key of every place's relevance."""
    return {
        Place(a.model, a.task, a.dtype, a.method): a.key for a in (artifact for artifact, _ in run.current("relevance"))
    }


def _values(run: Run, metric: str) -> dict[Place, dict[str, float]]:
    """The metric of every rightly predicted sample in each place's first variant, by sample."""
    values: dict[Place, dict[str, float]] = {}
    for place, table in run.read_each("scores", SCORES_SAMPLES, folder=1):
        if metric not in table.column_names:
            continue
        variants = {Variant(*row) for row in zip(*(table[name].to_pylist() for name in VARIANT), strict=True)}
        wanted = min(variants, key=variant_rank)
        keep = table["correct"]
        for name, value in zip(VARIANT, wanted, strict=True):
            keep = pc.and_(keep, pc.equal(table[name], value))
        rows = table.filter(keep)
        pairs = zip(rows["sample_id"].to_pylist(), rows[metric].to_pylist(), strict=True)
        values[place] = {name: value for name, value in pairs if value is not None}
    return values
