"""What is done, partial, missing and rejected, by the manifests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from jobs.config import ModelConfig, RunConfig
from jobs.methods import METHODS
from jobs.plan import Plan, make_plan, stale, state
from jobs.store import Store


@dataclass
class Line:
    """One row of the table: the cells of a model, task, precision and product."""

    states: Counter[str] = field(default_factory=Counter)
    samples: int = 0
    rejected: Counter[str] = field(default_factory=Counter)


def status(config: RunConfig, store: Store, console: Console) -> bool:
    """Print the state of every planned cell; whether all are complete."""
    plan = make_plan(config, store)
    lines = collect(config, plan, store)
    table = Table(title=f"{config.name} in {store.root}", title_justify="left", box=SIMPLE_HEAD, collapse_padding=True)
    for heading in ("model", "task", "dtype", "product"):
        table.add_column(heading)
    for heading in ("done", "partial", "missing", "samples", "rejected"):
        table.add_column(heading, justify="right")
    for place, line in lines.items():
        reasons = ", ".join(f"{count} {reason}" for reason, count in line.rejected.items()) or "0"
        counts = (str(line.states[name]) for name in ("done", "partial", "missing"))
        table.add_row(*place, *counts, str(line.samples), reasons)
    console.print(table)
    total = sum((line.states for line in lines.values()), Counter())
    console.print(
        f"{total.total()} cells: {total['done']} done, {total['partial']} partial, {total['missing']} missing"
    )
    _print_remarks(plan, store, console)
    return total["done"] == total.total() and not plan.failures and not plan.unprepared


def collect(config: RunConfig, plan: Plan, store: Store) -> dict[tuple[str, str, str, str], Line]:
    """Lines by (model, task, dtype, product). Rejected rows are counted once, not once a method."""
    lines: dict[tuple[str, str, str, str], Line] = {}
    for model, task in _out_of_sight(config, plan):
        names = [name for name in model.methods or config.methods if (model.name, name) not in plan.undefined]
        for dtype in model.dtypes_for(task):
            lines[model.name, task, dtype, "relevance"] = Line(Counter(missing=len(names)))
            if task in (config.heads or {}):
                lines[model.name, task, dtype, "heads"] = Line(Counter(missing=sum(METHODS[n].heads for n in names)))
    for planned in plan.cells():
        cell = planned.cell
        line = lines.setdefault((cell.model, cell.task, cell.dtype, cell.product), Line())
        line.states[state(store, cell)] += 1
        line.samples = planned.rows
        rejects = Counter((store.manifest(cell.name) or {}).get("rejects", {}))
        line.rejected |= rejects  # the most of any method
    return lines


def _out_of_sight(config: RunConfig, plan: Plan) -> Iterator[tuple[ModelConfig, str]]:
    """(model, task) whose cells cannot be keyed yet: the task is not prepared, or the model is out of reach."""
    for model in config.models:
        for task in config.tasks:
            wanted = model.tasks is None or task in model.tasks
            if wanted and (model.name in plan.failures or (model.name, task) in plan.unprepared):
                yield model, task


def _print_remarks(plan: Plan, store: Store, console: Console) -> None:
    for model, task in plan.unprepared:
        console.print(f"{model}: {task} is not prepared; run `closelook prepare`")
    for failure in plan.failures.values():
        console.print(failure)
    if plan.undefined:
        pairs = ", ".join(f"{method} on {model}" for model, method in plan.undefined)
        console.print(f"not defined, hence not planned: {pairs}")
    old = stale(store, plan)
    if old:
        console.print(f"{len(old)} stale cells, which `closelook gc` removes:")
        for name in old:
            console.print(f"  {name}")
