"""The page of `closelook compare --html`: changed scores, and samples as each of two runs explains them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa
import pyarrow.compute as pc

from evaluation.report.explorers import Explorer
from evaluation.report.leaves import Entry
from evaluation.report.page import Provenance, comparison_page
from evaluation.report.results import Results
from evaluation.report.table import Cell, Column, Row, Table
from evaluation.scoring.metrics import METRICS
from jobs.commands.roots.changes import Change
from jobs.plan.cells import make_plan
from jobs.plan.node import Run as PlannedRun
from jobs.results import Run, without_config
from jobs.stages.report import notes, provenance
from jobs.stages.report.results import default_samples, results_of
from jobs.stages.report.samples import choose, explorer
from lrp_core.records.types import UserError

MOST = 100  # most samples of a task, since the page is a single file
_SAMPLES = Column("", "samples", digits=0)
_DIFFERENCE = Column("", "difference", signed=True)
_CAPTION = (
    "On samples that both runs predict rightly. Stars: paired signs, after Holm, of all differences; none stand where "
    "both runs hold the same numbers."
)


def page(runs: Mapping[str, Run], facts: Sequence[str], changed: Sequence[Change], metric: str) -> str:
    """The HTML page about two runs, given by name; `facts` are lines to show, `changed` the scores by `metric`.

    Raises UserError if a run keeps no configuration.
    """
    first, second = (_Side(name, run) for name, run in runs.items())
    lines, configs, data, models = list(facts), [], [], []
    versions: dict[str, str] = {}
    for side in (first, second):
        made_by = provenance(side.planned)
        configs.append(f"# {side.name}\n{made_by.config}")
        data += [(f"{side.name}: {name}", digest) for name, digest in made_by.data]
        models += [(f"{side.name}: {name}", identity) for name, identity in made_by.models]
        for package, version in made_by.versions.items():
            before = versions.setdefault(package, version)
            versions[package] = version if version == before else f"{before} against {version}"
        lines += [f"{side.name}: {note}" for note in notes(side.planned, side.results)]
    names = first.name, second.name
    both = Provenance(" against ".join(names), "\n".join(configs), versions, data, models)
    return comparison_page(names, lines, _table(changed, metric, names), _explorer(first, second), both)


@dataclass(frozen=True, eq=False)
class _Side:
    """One of both runs, with the parts of its report."""

    name: str
    run: Run

    @cached_property
    def planned(self) -> PlannedRun:
        """The run with its plan. Raises UserError if its root keeps no configuration."""
        config, store = self.run.config, self.run.store
        if config is None:
            raise UserError(f"{without_config(store)}, or leave out --html")
        return PlannedRun(config, make_plan(config, store), self.run.ledger)

    @cached_property
    def results(self) -> Results:
        return results_of(self.planned)

    def scored(self, task: str) -> list[pa.Table]:
        """The scores of samples of a task: a table for each model and method, for :func:`choose`."""
        cells = [cell for cell in self.results.defaults if cell.task == task]
        return [default_samples(self.run.store, self.results, cell) for cell in cells]

    def entries(self, samples: dict[str, list[str]]) -> Iterator[Entry]:
        """The explorer's entries for these samples by task, in which models are named "MODEL in RUN"."""
        for entry in explorer(self.planned, self.results, samples):
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
    return choose(kept, min(MOST, first.planned.config.report.samples))


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
