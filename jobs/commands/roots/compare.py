"""`closelook compare`: shows how two runs differ in configuration, cells, scores (with paired tests) and cost.

The page of `--html` shows samples as each of the runs explains them.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from evaluation.report.explorers import Explorer
from evaluation.report.leaves import Entry
from evaluation.report.page import comparison_page
from evaluation.report.results import CellKey, Results, Variant, variant_rank
from evaluation.report.table import Cell, Column, Row, Table
from evaluation.schema import RUNTIME, SCORES_SAMPLES
from evaluation.scoring.metrics import METRICS, lead
from evaluation.scoring.samples import VARIANT
from evaluation.scoring.statistics import holm_adjusted, sign_flip_p, stars
from jobs.commands.terminal import say, say_table, write_file
from jobs.config import RunConfig
from jobs.config.kept import differences, left_out_line
from jobs.plan.cells import make_plan
from jobs.plan.node import Plan
from jobs.results import Run, open_run, without_config
from jobs.stages.report import notes, provenance
from jobs.stages.report.results import default_samples, results_of
from jobs.stages.report.samples import choose, explorer
from lrp_core.records.types import UserError, nearest

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


def show(first_root: str, second_root: str, metric: str | None, to: Path | None, html: Path | None) -> None:
    """Print differing settings, cells that only one run has, the scores of common cells side by side, and both costs.

    `metric` None: the first metric. `to` is a CSV file for the scores, `html` a page that also shows samples of both
    runs. Raises UserError for a root without a run, an unknown metric, and a file that cannot be written.
    """
    metric = metric or lead()
    if metric not in METRICS:
        raise UserError(f"no metric {metric!r}{nearest(metric, METRICS)}")
    first, second = open_run(first_root), open_run(second_root)
    if first.store.root.removeprefix("file://") == second.store.root.removeprefix("file://"):
        raise UserError(f"{first_root} and {second_root} are the same run: give the roots of two runs")
    facts = [f"{run.store.root}: {left_out_line(run.lacking)}" for run in (first, second) if run.lacking]
    facts += [*_settings(first, second), *_only_in(first, second), *_only_in(second, first)]
    for line in facts:
        say(line)
    changed = changes(first, second, metric)
    _print(changed, METRICS[metric].label)
    facts.append(f"seconds of methods: {_seconds(first):,.1f} against {_seconds(second):,.1f}")
    say(facts[-1])
    if to is not None:
        write_file(to, _csv(changed), newline="")
    if html is not None:
        write_file(html, page({first_root: first, second_root: second}, facts, changed, metric))


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


def _csv(changed: Sequence[Change]) -> str:
    """The scores of common cells in both runs as CSV."""
    text = StringIO(newline="")
    writer = csv.DictWriter(text, [*Change.__dataclass_fields__])
    writer.writeheader()
    writer.writerows(map(asdict, changed))
    return text.getvalue()


MOST = 100  # most samples of a task, since the page is a single file


def page(runs: Mapping[str, Run], facts: Sequence[str], changed: Sequence[Change], metric: str) -> str:
    """The HTML page about two runs, given by name; `facts` are lines to show, `changed` the scores by `metric`.

    Raises UserError if a run keeps no configuration.
    """
    first, second = (_Side(name, run) for name, run in runs.items())
    lines, configs, data, models = list(facts), [], [], []
    for side in (first, second):
        made_by = provenance(side.config, side.plan, side.run.ledger)
        configs.append(f"# {side.name}\n{made_by.config}")
        data += [(f"{side.name}: {name}", digest) for name, digest in made_by.data]
        models += [(f"{side.name}: {name}", identity) for name, identity in made_by.models]
        lines += [f"{side.name}: {note}" for note in notes(side.plan, side.run.ledger, side.results)]
    names = first.name, second.name
    both = provenance(first.config, first.plan, first.run.ledger)
    both = replace(both, run=" against ".join(names), config="\n".join(configs), data=data, models=models)
    return comparison_page(names, lines, _table(changed, metric, names), _explorer(first, second), both)


@dataclass(frozen=True, eq=False)
class _Side:
    """One of both runs, with the parts of its report."""

    name: str
    run: Run

    @cached_property
    def config(self) -> RunConfig:
        """The configuration that the root keeps. Raises UserError if it keeps none."""
        if self.run.config is None:
            raise UserError(f"{without_config(self.run.store)}, or leave out --html")
        return self.run.config

    @cached_property
    def plan(self) -> Plan:
        return make_plan(self.config, self.run.store)

    @cached_property
    def results(self) -> Results:
        return results_of(self.config, self.plan, self.run.store)

    def scored(self, task: str) -> list[pa.Table]:
        """The scores of samples of a task: a table for each model and method, for :func:`choose`."""
        cells = [cell for cell in self.results.defaults if cell.task == task]
        return [default_samples(self.run.store, self.results, cell) for cell in cells]

    def entries(self, samples: dict[str, list[str]]) -> Iterator[Entry]:
        """The explorer's entries for these samples by task, in which models are named "MODEL in RUN"."""
        for entry in explorer(self.config, self.plan, self.run.store, self.results, samples):
            yield entry | {"model": self.named(entry["model"])}

    def named(self, model: str) -> str:
        """The name of a model of this run on the page."""
        return f"{model} in {self.name}"


def _explorer(first: _Side, second: _Side) -> Explorer:
    """The explorer of samples that both runs scored: per task as many as the first run's report has, at most MOST."""
    tasks = [task for task in first.results.tasks if task in second.results.tasks]
    samples = {task: _common(first, second, task) for task in tasks}

    def order(entry: Entry) -> tuple[int, int]:
        return tasks.index(entry["task"]), samples[entry["task"]].index(entry["sample_id"])

    entries = sorted([*first.entries(samples), *second.entries(samples)], key=order)
    pairs = {}
    for side, other in ((first, second), (second, first)):
        for model in first.results.models:
            if model in second.results.models:
                pairs[side.named(model)] = other.named(model)
    return Explorer.of(entries, budget_bytes=float("inf"), pairs=pairs)


def _common(first: _Side, second: _Side, task: str) -> list[str]:
    """The ids of the samples of a task to show, chosen among those that both runs scored."""
    shared, tables = [], []
    for side in (first, second):
        scored = side.scored(task)
        shared.append({name for table in scored for name in table["sample_id"].to_pylist()})
        tables += scored
    both = pa.array(sorted(set.intersection(*shared)), pa.string())
    kept = [table.filter(pc.is_in(table["sample_id"], both)) for table in tables]
    return choose(kept, min(MOST, first.config.report.samples))


_SAMPLES = Column("", "samples", digits=0)
_DIFFERENCE = Column("", "difference", signed=True)
_CAPTION = (
    "On samples that both runs predict rightly. Stars: paired signs, after Holm, of all differences; none stand where "
    "both runs hold the same numbers."
)


def _table(changed: Sequence[Change], metric: str, names: tuple[str, str]) -> Table:
    """The table of the scores of every common cell in both runs."""
    rows = []
    for change in changed:
        p = None if change.same_key else change.p
        difference = Cell(change.difference, n=change.n, p=p)
        cells = (Cell(change.n), Cell(change.first), Cell(change.second), difference)
        rows.append(Row(change.task, (change.model, change.dtype, change.method), cells))
    title = f"{METRICS[metric].label} of both runs"
    scores = [Column("", name) for name in names]
    columns = (_SAMPLES, *scores, _DIFFERENCE)
    return Table("changes", title, _CAPTION, ("model", "precision", "method"), columns, tuple(rows))
