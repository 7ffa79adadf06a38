"""`closelook compare --html`: two runs on one page, where samples of both stand as either run explains them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from evaluation.report.explorer import Explorer
from evaluation.report.page import Provenance, comparison_page
from evaluation.report.results import Results
from evaluation.report.table import Cell, Column, Row, Table
from evaluation.scoring.metrics import METRICS
from jobs.commands.changes import Change
from jobs.config import RunConfig
from jobs.notebook.run import Run
from jobs.plan.cells import Plan, make_plan
from jobs.stages.report import notes, provenance
from jobs.stages.report.results import default_samples, results_of
from jobs.stages.report.samples import choose, explorer
from lrp_core.types import UserError

Entry = dict[str, Any]  # of :func:`heatmap.data`
MOST = 100  # samples of a task: the page is one file


def page(runs: Mapping[str, Run], facts: Sequence[str], changed: Sequence[Change], metric: str) -> str:
    """The page as HTML of two runs by their names. Raises UserError for a run that keeps no configuration."""
    sides = [_Side(*named) for named in runs.items()]
    names = sides[0].name, sides[1].name
    told = {side.name: side.provenance for side in sides}
    lacking = [f"{side.name}: {note}" for side in sides for note in side.notes]
    both = replace(
        told[names[0]],
        run=" against ".join(names),
        config="\n".join(f"# {name}\n{one.config}" for name, one in told.items()),
        data=[(f"{name}: {what}", value) for name, one in told.items() for what, value in one.data],
        models=[(f"{name}: {what}", value) for name, one in told.items() for what, value in one.models],
    )
    return comparison_page(names, [*facts, *lacking], _table(changed, metric, names), _explorer(*sides), both)


@dataclass(frozen=True, eq=False)
class _Side:
    """One of the runs, as its report would show it."""

    name: str
    run: Run

    @cached_property
    def config(self) -> RunConfig:
        if self.run.config is None:
            raise UserError(f"{self.name} keeps no configuration: run it once more to compare its samples")
        return self.run.config

    @cached_property
    def plan(self) -> Plan:
        return make_plan(self.config, self.run.store)

    @cached_property
    def results(self) -> Results:
        return results_of(self.config, self.plan, self.run.store)

    @property
    def provenance(self) -> Provenance:
        return provenance(self.config, self.plan, self.run.ledger)

    @property
    def notes(self) -> list[str]:
        """What it lacks."""
        return list(notes(self.plan, self.run.ledger, self.results))

    def scored(self, task: str) -> list[pa.Table]:
        """A table for each model and method, as :func:`choose` takes them."""
        places = [place for place in self.results.defaults if place.task == task]
        return [default_samples(self.run.store, self.results, place) for place in places]

    def entries(self, wanted: dict[str, list[str]]) -> Iterator[Entry]:
        """The report's entries for these samples, with their models named by this run."""
        for entry in explorer(self.config, self.plan, self.run.store, self.results, wanted):
            yield entry | {"model": self.named(entry["model"])}

    def named(self, model: str) -> str:
        return f"{model} in {self.name}"


def _explorer(first: _Side, second: _Side) -> Explorer:
    """Samples that both runs scored, as many of each task as the first run's report shows and at most MOST."""
    wanted = {task: _common(first, second, task) for task in first.results.tasks if task in second.results.tasks}
    order = {(task, name): at for task, names in wanted.items() for at, name in enumerate(names)}
    tasks = list(wanted)
    entries = sorted(
        (entry for side in (first, second) for entry in side.entries(wanted)),
        key=lambda entry: (tasks.index(entry["task"]), order[entry["task"], entry["sample_id"]]),
    )
    models = [model for model in first.results.models if model in second.results.models]
    pairs: dict[str, str] = {}
    for one, other in ((first, second), (second, first)):
        pairs |= {one.named(model): other.named(model) for model in models}
    return Explorer.of(entries, budget_bytes=float("inf"), pairs=pairs)


def _common(first: _Side, second: _Side, task: str) -> list[str]:
    sides = [side.scored(task) for side in (first, second)]
    ids = [{name for table in tables for name in table["sample_id"].to_pylist()} for tables in sides]
    both = pa.array(sorted(ids[0] & ids[1]), pa.string())
    tables = [table.filter(pc.is_in(table["sample_id"], both)) for side in sides for table in side]
    return choose(tables, min(MOST, first.config.report.samples))


def _table(changed: Sequence[Change], metric: str, names: tuple[str, str]) -> Table:
    """The scores of every place in both runs."""
    columns = [Column("", "samples", digits=0), *(Column("", name) for name in names)]
    rows = []
    for one in changed:
        difference = Cell(one.second - one.first, n=one.n, p=None if one.same_key else one.p)
        cells = (Cell(one.n), Cell(one.first), Cell(one.second), difference)
        rows.append(Row(one.task, (one.model, one.dtype, one.method), cells))
    return Table(
        name="changes",
        title=f"{METRICS[metric].label} of both runs",
        caption="On samples that both runs predict rightly. Stars: paired signs, after Holm, of all differences; none "
        "stand where both runs hold the same numbers.",
        heads=("model", "precision", "method"),
        columns=(*columns, Column("", "difference", signed=True)),
        rows=tuple(rows),
    )
