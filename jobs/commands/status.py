"""What is done, partial, missing and rejected, by the manifests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from jobs.commands.plan import by_reason
from jobs.commands.plan_basis import defined
from jobs.commands.plan_choices import undecided
from jobs.config import ModelConfig, RunConfig
from jobs.config.lacking import told
from jobs.plan.cells import Plan, make_plan, without_samples
from jobs.plan.choices import Choice
from jobs.plan.products import PRODUCTS, stale, wanted
from jobs.plan.products.scores import metrics_lacking
from jobs.plan.products.trials import TRIALS
from jobs.store import Ledger, Store


@dataclass
class Counts:
    """One row of the table: the artifacts of one product for a model, task and precision."""

    states: Counter[str] = field(default_factory=Counter)
    samples: int = 0
    rejected: Counter[str] = field(default_factory=Counter)


def status(config: RunConfig, store: Store, console: Console) -> bool:
    """Print the state of everything that the run wants; whether all is complete."""
    plan, ledger = make_plan(config, store), Ledger(store)
    rows = collect(config, plan, ledger)
    table = Table(title=f"{config.name} in {store.root}", title_justify="left", box=SIMPLE_HEAD, collapse_padding=True)
    for heading in ("model", "task", "dtype", "product"):
        table.add_column(heading)
    for heading in ("done", "partial", "missing", "samples", "rejected"):
        table.add_column(heading, justify="right")
    for (*place, product), row in rows.items():
        reasons = ", ".join(f"{count} {reason}" for reason, count in row.rejected.items()) or "0"
        counts = (str(row.states[name]) for name in ("done", "partial", "missing"))
        table.add_row(*place, PRODUCTS[product].heading, *counts, str(row.samples), reasons)
    console.print(table)
    totals: dict[str, Counter[str]] = {}
    for (*_, product), row in rows.items():
        totals.setdefault(PRODUCTS[product].plural, Counter()).update(row.states)
    for name, total in totals.items():
        counted = ", ".join(f"{total[state]} {state}" for state in ("done", "partial", "missing"))
        console.print(f"{total.total()} {name}: {counted}")
    _print_remarks(config, plan, ledger, console)
    done = all(total["done"] == total.total() for total in totals.values())
    return done and not config.lacking and not plan.failures and not plan.unprepared and not plan.undecided


def collect(config: RunConfig, plan: Plan, ledger: Ledger) -> dict[tuple[str, str, str, str], Counts]:
    """Rows by (model, task, dtype, product), places together. Rejected samples count once, not once a method."""
    rows: dict[tuple[str, str, str, str], Counts] = {}
    for model, task in _out_of_sight(config, plan):
        names = defined(config, model, next((planned for planned in plan.models if planned.name == model.name), None))
        for product in PRODUCTS.values():
            for dtype, count in product.expected(config, model, task, names).items():
                if count:
                    rows[model.name, task, dtype, product.name] = Counts(Counter(missing=count))
    for choice in plan.undecided:
        for name, count in _waiting(config, choice):
            place = (choice.artifact.model, choice.artifact.task, choice.artifact.dtype)
            rows.setdefault((*place, name), Counts()).states["missing"] += count
    empty = without_samples(plan, ledger)
    for product, one in wanted(config, plan, ledger):
        artifact = one.artifact
        row = rows.setdefault((artifact.model, artifact.task, artifact.dtype, product.name), Counts())
        row.states[one.state(ledger)] += 1
        row.samples = one.samples
        row.rejected |= Counter((ledger.record(artifact) or {}).get("rejects", {}))  # the most of any method
        if not one.of:
            row.rejected |= Counter(empty.get((artifact.model, artifact.task), {}))
    places = list(dict.fromkeys(row[:3] for row in rows))
    return dict(sorted(rows.items(), key=lambda row: places.index(row[0][:3])))


def _waiting(config: RunConfig, choice: Choice) -> Iterator[tuple[str, int]]:
    """(product, how many) of the artifacts that have no key before this choice is made."""
    place = choice.artifact
    model = config.model(place.model)
    every = [entry.name for entry in config.methods_of(model)]
    others = [name for name in every if name != place.method]
    for product in PRODUCTS.values():
        if product is not TRIALS:
            count, without = (product.expected(config, model, place.task, names) for names in (every, others))
            if count.get(place.dtype, 0) > without.get(place.dtype, 0):
                yield product.name, count[place.dtype] - without.get(place.dtype, 0)


def _out_of_sight(config: RunConfig, plan: Plan) -> Iterator[tuple[ModelConfig, str]]:
    """(model, task) whose artifacts have no key yet: the task is not prepared, or the model is out of reach."""
    for model in config.models:
        for task in plan.tasks_of(config, model):
            if model.name in plan.failures or (model.name, task) in plan.unprepared:
                yield model, task


def _print_remarks(config: RunConfig, plan: Plan, ledger: Ledger, console: Console) -> None:
    if lacking := [*config.lacking, *metrics_lacking(ledger)]:
        console.print(told(lacking), markup=False)
    for line in config.left_out:
        console.print(f"left out: {line}", markup=False)
    for model, task in plan.unprepared:
        console.print(f"{model}: {task} is not prepared; run `closelook prepare`")
    for line in by_reason(plan.failures):
        console.print(line, markup=False)
    for choice in plan.undecided:
        console.print(f"{choice}: {undecided(choice)}", markup=False)
    if plan.undefined:
        pairs = ", ".join(f"{method} on {model}" for model, method in plan.undefined)
        console.print(f"not defined, hence not planned: {pairs}")
    artifacts = [one.artifact for _, one in wanted(config, plan, ledger)]
    for line in (*filter(None, map(ledger.described_damage, artifacts)), *ledger.unreadable().values()):
        console.print(line, markup=False)
    old = stale(ledger, artifacts)
    if old:
        console.print(f"{len(old)} stale records, which `closelook gc --yes` removes:")
        for _, name in old:
            console.print(f"  {name}")
