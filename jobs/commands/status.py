"""What is done, partial, missing and rejected, by the manifests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from jobs.commands.gc import stale_results
from jobs.commands.plan import by_reason, count_heads, defined
from jobs.config import ModelConfig, RunConfig
from jobs.plan.cells import Plan, State, make_plan, stale, state, without_samples
from jobs.stages.bench import DTYPE, is_measured, wanted_measurements
from jobs.stages.evaluate import is_scored, scores_keys
from jobs.stages.prune import state_of, wanted_curves
from jobs.store import Store

RESULTS = {"scores": "scores", "curves": "sets of curves", "bench": "benchmarks"}  # products that are no cells


@dataclass
class Line:
    """One row of the table: the cells, scores or sets of curves of a model, task and precision."""

    states: Counter[str] = field(default_factory=Counter)
    samples: int = 0
    rejected: Counter[str] = field(default_factory=Counter)


def status(config: RunConfig, store: Store, console: Console) -> bool:
    """Print the state of every planned cell and of what is made of it; whether all are complete."""
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
    totals: dict[str, Counter[str]] = {}
    for (*_, product), line in lines.items():
        totals.setdefault(RESULTS.get(product, "cells"), Counter()).update(line.states)
    for name, total in totals.items():
        counted = ", ".join(f"{total[state]} {state}" for state in ("done", "partial", "missing"))
        console.print(f"{total.total()} {name}: {counted}")
    _print_remarks(config, plan, store, console)
    done = all(total["done"] == total.total() for total in totals.values())
    return done and not plan.failures and not plan.unprepared


def collect(config: RunConfig, plan: Plan, store: Store) -> dict[tuple[str, str, str, str], Line]:
    """Lines by (model, task, dtype, product), places together. Rejected rows are counted once, not once a method."""
    lines: dict[tuple[str, str, str, str], Line] = {}
    for model, task in _out_of_sight(config, plan):
        names = defined(config, model, next((found for found in plan.models if found.name == model.name), None))
        for dtype in model.dtypes_for(task):
            counts = {"relevance": len(names), "heads": count_heads(config, model, task, dtype, names)}
            counts |= {"scores": len(names), "curves": count_curves(config, task, counts["heads"])}
            for product, count in counts.items():
                if count:
                    lines[model.name, task, dtype, product] = Line(Counter(missing=count))
        if config.bench is not None and task == config.bench.task:
            lines[model.name, task, DTYPE, "bench"] = Line(Counter(missing=1))
    empty = without_samples(plan, store)
    for planned in plan.cells():
        cell = planned.cell
        line = lines.setdefault((cell.model, cell.task, cell.dtype, cell.product), Line())
        line.states[state(store, cell)] += 1
        line.samples = planned.rows
        rejects = Counter((store.manifest(cell.name) or {}).get("rejects", {}))
        line.rejected |= rejects  # the most of any method
        line.rejected |= Counter(empty.get((cell.model, cell.task), {}))
    for name, place, result in _results(config, plan, store):
        line = lines.setdefault((*place, name), Line())
        line.states[result] += 1
        line.samples = lines[*place, "relevance" if name == "scores" else "heads"].samples
    for one in wanted_measurements(config.bench, plan):
        measured: State = "done" if is_measured(store, one) else "missing"
        lines[one.model, one.task, DTYPE, "bench"] = Line(Counter({measured: 1}), len(one.rows))
    places = list(dict.fromkeys(line[:3] for line in lines))
    return dict(sorted(lines.items(), key=lambda line: places.index(line[0][:3])))


def _results(config: RunConfig, plan: Plan, store: Store) -> Iterator[tuple[str, tuple[str, str, str], State]]:
    """What is made of cells: (scores or curves, (model, task, dtype), state)."""
    for _, planned, key in scores_keys(config, plan, store):
        cell = planned.cell
        scored = key is not None and is_scored(store, cell, key)
        yield "scores", (cell.model, cell.task, cell.dtype), "done" if scored else "missing"
    if config.prune is None:
        return
    for model in plan.models:
        for curves in wanted_curves(config, config.prune, model):
            heads = curves.heads
            yield "curves", (heads.model, heads.task, heads.dtype), state_of(store, curves)


def count_curves(config: RunConfig, task: str, heads: int) -> int:
    """Sets of curves that `heads` cells of a task will give: one of each, and one of random orders."""
    settings = config.prune
    if settings is None or not heads or task not in (settings.tasks or (task,)):
        return 0
    return heads + (settings.random_runs > 0)


def _out_of_sight(config: RunConfig, plan: Plan) -> Iterator[tuple[ModelConfig, str]]:
    """(model, task) whose cells cannot be keyed yet: the task is not prepared, or the model is out of reach."""
    for model in config.models:
        for task in config.tasks:
            wanted = model.tasks is None or task in model.tasks
            if wanted and (model.name in plan.failures or (model.name, task) in plan.unprepared):
                yield model, task


def _print_remarks(config: RunConfig, plan: Plan, store: Store, console: Console) -> None:
    for model, task in plan.unprepared:
        console.print(f"{model}: {task} is not prepared; run `closelook prepare`")
    for line in by_reason(plan.failures):
        console.print(line, markup=False)
    if plan.undefined:
        pairs = ", ".join(f"{method} on {model}" for model, method in plan.undefined)
        console.print(f"not defined, hence not planned: {pairs}")
    old = stale(store, plan) + stale_results(config, plan, store)
    if old:
        console.print(f"{len(old)} stale records, which `closelook gc --yes` removes:")
        for name in old:
            console.print(f"  {name}")
