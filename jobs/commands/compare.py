"""`closelook compare`: the differences between two runs: cells, scores with paired tests, cost, configuration."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc

from evaluation.report.results import Place, Variant, variant_rank
from evaluation.schema import RUNTIME, SCORES_SAMPLES
from evaluation.scoring.metrics import METRICS, lead
from evaluation.scoring.samples import VARIANT
from evaluation.scoring.statistics import holm_adjusted, sign_flip_p, stars
from jobs.commands.terminal import say, say_table, write_file
from jobs.config.kept import differences
from jobs.config.lacking import told
from jobs.notebook.run import Run, open_run
from lrp_core.types import UserError, nearest

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


def keys_of(run: Run) -> dict[Place, str]:
    """The key of every cell's relevance."""
    return {Place(a.model, a.task, a.dtype, a.method): a.key for a, _ in run.current("relevance")}


def _values(run: Run, metric: str) -> dict[Place, dict[str, float]]:
    """The metric of every rightly predicted sample in each cell's first variant, by sample."""
    values: dict[Place, dict[str, float]] = {}
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


def show(first_root: str, second_root: str, metric: str | None, to: Path | None, html: Path | None) -> None:
    """Print the cells of one root alone, the differing settings, every cell's scores side by side, and both costs.

    `to` is a CSV file of the scores, `html` a page with the same, and with samples of both runs beside each other.
    Raises UserError for a root without a run, an unknown metric, and a file that cannot be written.
    """
    metric = metric or lead()
    if metric not in METRICS:
        raise UserError(f"no metric {metric!r}{nearest(metric, METRICS)}")
    first, second = open_run(first_root), open_run(second_root)
    if first.store.root.removeprefix("file://") == second.store.root.removeprefix("file://"):
        raise UserError(f"{first_root} and {second_root} are the same run: give two to compare")
    facts = [f"{run.store.root}: {told(run.lacking)}" for run in (first, second) if run.lacking]
    facts += [*_settings(first, second), *_alone(first, second), *_alone(second, first)]
    for line in facts:
        say(line)
    changed = changes(first, second, metric)
    _print(changed, METRICS[metric].label)
    facts.append(f"seconds of methods: {_seconds(first):,.1f} against {_seconds(second):,.1f}")
    say(facts[-1])
    if to is not None:
        write_file(to, _csv(changed), newline="")
    if html is not None:
        from jobs.commands.compare_page import page

        write_file(html, page({first_root: first, second_root: second}, facts, changed, metric))


def _settings(first: Run, second: Run) -> Iterator[str]:
    """The differences between the kept configurations."""
    lines = [f"  {difference}" for difference in differences(_plain(first), _plain(second))]
    if lines:
        yield "configurations differ:"
        yield from lines


def _plain(run: Run) -> dict[str, Any]:
    return {} if run.config is None else run.config.model_dump(mode="json", exclude={"root", "name"})


def _alone(run: Run, other: Run) -> Iterator[str]:
    """The cells that only `run` holds."""
    alone = sorted(keys_of(run).keys() - keys_of(other).keys())
    if alone:
        yield f"only in {run.store.root}: {len(alone)} cells"
        yield from (f"  {' · '.join(cell)}" for cell in alone)


def _seconds(run: Run) -> float:
    """Wall seconds of all methods."""
    files = run.store.files("runtime", recursive=True)
    if not files:
        return 0.0
    table = run.store.read(files, RUNTIME, ["stage", "wall_s"])
    return pc.sum(table.filter(pc.equal(table["stage"], "method"))["wall_s"]).as_py() or 0.0


def _print(changed: Sequence[Change], label: str) -> None:
    if not changed:
        say(f"no place was scored by {label} in both runs")
        return
    rows = []
    for change in changed:
        difference, p = f"{change.difference:+.1f}{stars(change.p)}", f"{change.p:.3g}"
        if change.same_key:
            difference, p = "same numbers", ""
        cell = (change.model, change.task, change.dtype, change.method)
        rows.append((*cell, str(change.n), f"{change.first:.1f}", f"{change.second:.1f}", difference, p))
    say(f"{label}, samples that both runs predict rightly; p: paired signs, after Holm:")
    numbers = ("samples", "first", "second", "difference", "p")
    say_table(("model", "task", "dtype", "method", *numbers), rows, numbers)


def _csv(changed: Sequence[Change]) -> str:
    text = StringIO(newline="")
    writer = csv.DictWriter(text, [*Change.__dataclass_fields__])
    writer.writeheader()
    writer.writerows(map(asdict, changed))
    return text.getvalue()
