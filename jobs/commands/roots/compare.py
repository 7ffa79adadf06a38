"""`closelook compare`: shows how two runs differ in configuration, cells, scores (with paired tests) and cost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow.compute as pc

from closelook.evaluation.schema import RUNTIME
from closelook.evaluation.scoring.metrics import METRICS, lead
from closelook.evaluation.scoring.statistics import stars
from closelook.jobs.commands.roots.changes import Change, changes, keys_of
from closelook.jobs.config.kept import differences
from closelook.jobs.results import Run, load
from closelook.lrp_core.records.types import UserError, nearest
from closelook.terminal import as_csv, say, say_table, write_file


def show(first_root: str, second_root: str, metric: str | None, to: Path | None) -> None:
    """Print differing settings, cells that only one run has, the scores of common cells side by side, and both costs.

    `metric` None: the first metric. `to` is a CSV file for the scores. Raises UserError for a root without a run, an
    unknown metric, and a file that cannot be written.
    """
    metric = metric or lead()
    if metric not in METRICS:
        raise UserError(f"no metric {metric!r}{nearest(metric, METRICS)}")
    first, second = load(first_root), load(second_root)
    if first.store.root.removeprefix("file://") == second.store.root.removeprefix("file://"):
        raise UserError(f"{first_root} and {second_root} are the same run: give the roots of two runs")
    for line in (*_settings(first, second), *_only_in(first, second), *_only_in(second, first)):
        say(line)
    changed = changes(first, second, metric)
    _print(changed, METRICS[metric].label)
    say(f"seconds of methods: {_seconds(first):,.1f} against {_seconds(second):,.1f}")
    if to is not None:
        write_file(to, as_csv(Change, changed), newline="")


def _settings(first: Run, second: Run) -> Iterator[str]:
    """Lines about the differences between the configurations that both roots keep."""
    lines = [f"  {difference}" for difference in differences(_plain(first), _plain(second))]
    if lines:
        yield "configurations differ:"
        yield from lines


def _plain(run: Run) -> dict[str, Any]:
    """The settings of a run, without its root and name; {} if it keeps none."""
    return {} if run.config is None else run.config.model_dump(mode="json", exclude={"root", "name"})


def _only_in(run: Run, other: Run) -> Iterator[str]:
    """Lines about the cells that `run` holds and `other` does not."""
    cells = sorted(keys_of(run).keys() - keys_of(other).keys())
    if cells:
        yield f"only in {run.store.root}: {len(cells)} cells"
        yield from (f"  {' · '.join(cell)}" for cell in cells)


def _seconds(run: Run) -> float:
    """The wall-clock seconds that all methods of the run took."""
    files = run.store.files("runtime", recursive=True)
    if not files:
        return 0.0
    table = run.store.read(files, RUNTIME, ["stage", "wall_s"])
    return pc.sum(table.filter(pc.equal(table["stage"], "method"))["wall_s"]).as_py() or 0.0


def _print(changed: Sequence[Change], label: str) -> None:
    """Print the scores of common cells in both runs as a table; `label` is the metric's."""
    if not changed:
        say(f"no cell has scores by {label} in both runs")
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
