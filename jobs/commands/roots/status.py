"""`closelook status`: counts artifacts that are done, partial, missing or damaged, and rejected samples."""

from __future__ import annotations

import gc
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from closelook.jobs.commands.roots.plan import by_reason
from closelook.jobs.config import RunConfig
from closelook.jobs.plan.cells import make_plan, without_samples
from closelook.jobs.plan.choices import undecided
from closelook.jobs.plan.node import Plan, Run, state_of
from closelook.jobs.products.table import PRODUCTS, nodes, stale
from closelook.jobs.store import Artifact, Ledger, State, Store
from closelook.terminal import say, say_table

MOST_ROWS = 2000  # a longer table leaves out rows whose artifacts are all done
_STATES: tuple[State, ...] = ("done", "partial", "missing", "damaged")


@dataclass
class Counts:
    """A row of the table: the artifacts of a product for a model, task and precision."""

    states: Counter[str] = field(default_factory=Counter)
    samples: int = 0
    rejected: Counter[str] = field(default_factory=Counter)


Rows = dict[tuple[str, str, str, str], Counts]  # by model, task, dtype and product


@dataclass(frozen=True, slots=True)
class Wanted:
    """The few fields of a node that are counted: millions of whole nodes would take gigabytes."""

    product: str
    artifact: Artifact
    samples: int
    made_of: tuple[Artifact, ...]

    def state(self, ledger: Ledger) -> State:
        return state_of(ledger, self.artifact, self.made_of)


@contextmanager
def _uncollected() -> Iterator[None]:
    """Pause Python's garbage collector, which would look at millions of records again and again and free nothing."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@_uncollected()
def status(config: RunConfig, store: Store) -> bool:
    """Print the states of all artifacts of the run, and remarks. Returns True if everything is complete."""
    ledger = Ledger(store)
    with ledger.listed_ahead():
        plan = make_plan(config, store, ledger=ledger)
        artifacts = wanted_of(config, plan, ledger)
    cells, totals = [], dict[str, Counter[str]]()
    rows = collect(config, plan, ledger, artifacts)
    is_long = len(rows) > MOST_ROWS
    for (*group, name), row in rows.items():
        product = PRODUCTS[name]
        totals.setdefault(product.title, Counter()).update(row.states)
        if is_long and row.states["done"] == row.states.total():
            continue
        reasons = ", ".join(f"{count} {reason}" for reason, count in row.rejected.items()) or "0"
        states = [str(row.states[state]) for state in _STATES]
        cells.append((*group, product.heading, *states, str(row.samples), reasons))
    numbers = (*_STATES, "samples", "rejected")
    say_table(("model", "task", "dtype", "product", *numbers), cells, numbers, f"{config.name} in {store.root}")
    if is_long:
        say(f"{len(rows) - len(cells)} more rows, whose artifacts are all done, are left out")
    for plural, total in totals.items():
        shown = [state for state in _STATES if state != "damaged" or total[state]]
        counted = ", ".join(f"{total[state]} {state}" for state in shown)
        say(f"{total.total()} {plural}: {counted}")
    for line in _remarks(config, plan, ledger, [item.artifact for item in artifacts]):
        say(line)
    done = all(total["done"] == total.total() for total in totals.values())
    return done and not (plan.failures or plan.unprepared or plan.undecided)


def wanted_of(config: RunConfig, plan: Plan, ledger: Ledger) -> list[Wanted]:
    """Every artifact that the run wants and whose key is known, product by product."""
    planned = nodes(Run(config, plan, ledger))
    return [Wanted(product.name, node.artifact, node.samples, node.made_of) for product, node in planned]


def collect(config: RunConfig, plan: Plan, ledger: Ledger, artifacts: Iterable[Wanted] | None = None) -> Rows:
    """The rows of the table, those of a (model, task, precision) together.

    `artifacts` None: all that the run wants. A rejected sample counts once, even if several methods reject it.
    """
    rows: Rows = defaultdict(Counts)
    empty = without_samples(plan, ledger)
    for item in wanted_of(config, plan, ledger) if artifacts is None else artifacts:
        artifact = item.artifact
        row = rows[artifact.model, artifact.task, artifact.dtype, item.product]
        row.states[item.state(ledger)] += 1
        row.samples = item.samples
        if rejects := (ledger.record(artifact) or {}).get("rejects"):
            row.rejected |= Counter(rejects)  # by reason, the largest count of any method
        if not item.made_of and (artifact.model, artifact.task) in empty:
            row.rejected |= Counter(empty[artifact.model, artifact.task])
    places = {columns: at for at, columns in enumerate(dict.fromkeys(row[:3] for row in rows))}
    return dict(sorted(rows.items(), key=lambda row: places[row[0][:3]]))


def _remarks(config: RunConfig, plan: Plan, ledger: Ledger, artifacts: Sequence[Artifact]) -> Iterator[str]:
    """Lines about what the run leaves out, and about artifacts that wait, are damaged or stale."""
    yield from (f"left out: {line}" for line in config.left_out)
    for model, task in plan.unprepared:
        yield f"{model}: {task} is not prepared: run `closelook prepare` with the same --config and --root"
    yield from by_reason(plan.failures)
    yield from map(undecided, plan.undecided)
    if plan.undefined:
        pairs = ", ".join(f"{method} on {model}" for model, method in plan.undefined)
        yield f"not defined, hence not planned: {pairs}"
    damaged = [artifact for artifact in artifacts if ledger.state(artifact) == "damaged"]
    yield from filter(None, map(ledger.described_damage, damaged))
    yield from ledger.unreadable().values()
    old = stale(ledger, artifacts)
    if old:
        yield f"{len(old)} stale records, which `closelook gc --yes` removes:"
        yield from (f"  {name}" for _, name in old)
