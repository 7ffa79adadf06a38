"""`closelook compare`: what changed between two runs: cells, scores with paired tests, cost, configuration."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from evaluation.report.results import Place, Variant, variant_rank
from evaluation.schema import RUNTIME, SCORES_SAMPLES
from evaluation.scoring.metrics import METRICS, lead
from evaluation.scoring.samples import VARIANT
from evaluation.scoring.statistics import sign_flip_p, stars, step_down
from jobs.config.kept import differences
from jobs.notebook.run import Run, load
from lrp_core.types import UserError, nearest

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


def show(one: str, other: str, metric: str | None, to: Path | None, console: Console) -> None:
    """Print what is in one root alone, what the configurations differ in, every place's scores side by side, and what
    both cost. Raises UserError for a root without a run, an unknown metric, and a file that cannot be written."""
    metric = metric or lead()
    if metric not in METRICS:
        raise UserError(f"no metric {metric!r}{nearest(metric, METRICS)}")
    first, second = load(one), load(other)
    for line in _settings(first, second):
        console.print(line, markup=False)
    for run, rest in ((first, second), (second, first)):
        alone = sorted(set(_keys(run)) - set(_keys(rest)))
        if alone:
            console.print(f"only in {run.store.root}: {len(alone)} cells", markup=False)
            for place in alone:
                console.print(f"  {' · '.join(place)}", markup=False)
    found = changes(first, second, metric)
    _print(found, metric, console)
    costs = [sum(_seconds(run).values()) for run in (first, second)]
    console.print(f"seconds of methods: {costs[0]:,.1f} against {costs[1]:,.1f}")
    if to is not None:
        _write(to, found)
        console.print(f"written to {to}", markup=False)


def changes(first: Run, second: Run, metric: str) -> list[Change]:
    """Of every place that both runs scored by `metric`, in the order of the first."""
    keys = [_keys(run) for run in (first, second)]
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


def _keys(run: Run) -> dict[Place, str]:
    """The key of every place's relevance."""
    return {
        Place(a.model, a.task, a.dtype, a.method): a.key for a in (artifact for artifact, _ in run.current("relevance"))
    }


def _values(run: Run, metric: str) -> dict[Place, dict[str, float]]:
    """The metric of every rightly predicted sample in each place's first variant, by sample."""
    found: dict[Place, dict[str, float]] = {}
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
        found[place] = {name: value for name, value in pairs if value is not None}
    return found


def _settings(first: Run, second: Run) -> Iterator[str]:
    """What the kept configurations differ in."""
    found = [str(difference) for difference in differences(_plain(first), _plain(second))]
    if found:
        yield "configurations differ:"
        yield from (f"  {line}" for line in found)


def _plain(run: Run) -> dict[str, Any]:
    return {} if run.config is None else run.config.model_dump(mode="json", exclude={"root", "name"})


def _seconds(run: Run) -> dict[str, float]:
    """Wall seconds of methods, by method."""
    files = run.store.files("runtime", recursive=True)
    if not files:
        return {}
    table = run.store.read(files, RUNTIME, ["method", "stage", "wall_s"])
    sums = table.filter(pc.equal(table["stage"], "method")).group_by("method").aggregate([("wall_s", "sum")])
    return dict(zip(sums["method"].to_pylist(), sums["wall_s_sum"].to_pylist(), strict=True))


def _print(found: Sequence[Change], metric: str, console: Console) -> None:
    if not found:
        console.print(f"no place was scored by {METRICS[metric].label} in both runs")
        return
    table = Table(box=SIMPLE_HEAD, collapse_padding=True)
    for heading in ("model", "task", "dtype", "method"):
        table.add_column(heading)
    for heading in ("samples", "first", "second", "difference", "p"):
        table.add_column(heading, justify="right")
    for one in found:
        change = "same numbers" if one.same_key else f"{one.second - one.first:+.1f}{stars(one.p)}"
        numbers = (str(one.n), f"{one.first:.1f}", f"{one.second:.1f}", change, "" if one.same_key else f"{one.p:.3g}")
        table.add_row(one.model, one.task, one.dtype, one.method, *numbers)
    console.print(f"{METRICS[metric].label}, samples that both runs predict rightly; p: paired signs, after Holm:")
    console.print(table)


def _write(to: Path, found: Sequence[Change]) -> None:
    try:
        with to.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, [*Change.__dataclass_fields__])
            writer.writeheader()
            writer.writerows(map(asdict, found))
    except OSError as error:
        raise UserError(f"cannot write {to}: {error.strerror}") from None
