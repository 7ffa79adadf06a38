"""`closelook compare`: what changed between two runs: cells, scores with paired tests, cost, configuration."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from io import StringIO
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from evaluation.schema import RUNTIME
from evaluation.scoring.metrics import METRICS, lead
from evaluation.scoring.statistics import stars
from jobs.commands.changes import Change, changes, keys_of
from jobs.commands.terminal import write_file
from jobs.config.kept import differences
from jobs.config.lacking import told
from jobs.notebook.run import Run, open_run
from lrp_core.types import UserError, nearest


def show(one: str, other: str, metric: str | None, to: Path | None, html: Path | None, console: Console) -> None:
    """Print what is in one root alone, what the configurations differ in, every place's scores side by side, and what
    both cost. `html` is a page with the same, and with samples of both runs beside each other.

    Raises UserError for a root without a run, an unknown metric, and a file that cannot be written.
    """
    metric = metric or lead()
    if metric not in METRICS:
        raise UserError(f"no metric {metric!r}{nearest(metric, METRICS)}")
    first, second = open_run(one), open_run(other)
    if first.store.root.removeprefix("file://") == second.store.root.removeprefix("file://"):
        raise UserError(f"{one} and {other} are the same run: give two to compare")
    facts = [f"{run.store.root}: {told(run.lacking)}" for run in (first, second) if run.lacking]
    facts += [*_settings(first, second), *_alone(first, second)]
    for line in facts:
        console.print(line, markup=False)
    changed = changes(first, second, metric)
    _print(changed, metric, console)
    costs = [sum(_seconds(run).values()) for run in (first, second)]
    facts.append(f"seconds of methods: {costs[0]:,.1f} against {costs[1]:,.1f}")
    console.print(facts[-1], markup=False)
    if to is not None:
        write_file(to, _csv(changed), newline="")
        console.print(f"written to {to}", markup=False)
    if html is not None:
        from jobs.commands.compare_page import page

        write_file(html, page({one: first, other: second}, facts, changed, metric))
        console.print(f"written to {html}", markup=False)


def _settings(first: Run, second: Run) -> Iterator[str]:
    """What the kept configurations differ in."""
    lines = [str(difference) for difference in differences(_plain(first), _plain(second))]
    if lines:
        yield "configurations differ:"
        yield from (f"  {line}" for line in lines)


def _alone(first: Run, second: Run) -> Iterator[str]:
    """What only one of both holds."""
    for run, other in ((first, second), (second, first)):
        alone = sorted(set(keys_of(run)) - set(keys_of(other)))
        if alone:
            yield f"only in {run.store.root}: {len(alone)} cells"
            yield from (f"  {' · '.join(place)}" for place in alone)


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


def _print(changed: Sequence[Change], metric: str, console: Console) -> None:
    if not changed:
        console.print(f"no place was scored by {METRICS[metric].label} in both runs")
        return
    table = Table(box=SIMPLE_HEAD, collapse_padding=True)
    for heading in ("model", "task", "dtype", "method"):
        table.add_column(heading)
    for heading in ("samples", "first", "second", "difference", "p"):
        table.add_column(heading, justify="right")
    for one in changed:
        change = "same numbers" if one.same_key else f"{one.second - one.first:+.1f}{stars(one.p)}"
        numbers = (str(one.n), f"{one.first:.1f}", f"{one.second:.1f}", change, "" if one.same_key else f"{one.p:.3g}")
        table.add_row(one.model, one.task, one.dtype, one.method, *numbers)
    console.print(f"{METRICS[metric].label}, samples that both runs predict rightly; p: paired signs, after Holm:")
    console.print(table)


def _csv(changed: Sequence[Change]) -> str:
    text = StringIO(newline="")
    writer = csv.DictWriter(text, [*Change.__dataclass_fields__])
    writer.writeheader()
    writer.writerows(map(asdict, changed))
    return text.getvalue()
