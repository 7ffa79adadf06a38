"""`closelook status`: counts artifacts that are done, partial, missing or damaged, and rejected samples."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from closelook.jobs.commands.roots.plan import by_reason
from closelook.jobs.config import RunConfig
from closelook.jobs.plan.cells import make_plan, without_samples
from closelook.jobs.plan.choices import undecided
from closelook.jobs.plan.node import Run
from closelook.jobs.products.table import PRODUCTS, nodes, stale
from closelook.jobs.store import Artifact, Ledger, State, Store
from closelook.terminal import say, say_table

_STATES: tuple[State, ...] = ("done", "partial", "missing", "damaged")


@dataclass
class Counts:
    """A row of the table: the artifacts of a product for a model, task and precision."""

    states: Counter[str] = field(default_factory=Counter)
    samples: int = 0
    rejected: Counter[str] = field(default_factory=Counter)


Rows = dict[tuple[str, str, str, str], Counts]  # by model, task, dtype and product


def status(config: RunConfig, store: Store) -> bool:
    """Print the states of all artifacts of the run, and remarks. Returns True if everything is complete."""
    ledger = Ledger(store)
    run = Run(config, make_plan(config, store, ledger=ledger), ledger)
    cells, totals = [], dict[str, Counter[str]]()
    for (*group, name), row in collect(run).items():
        product = PRODUCTS[name]
        totals.setdefault(product.title, Counter()).update(row.states)
        reasons = ", ".join(f"{count} {reason}" for reason, count in row.rejected.items()) or "0"
        states = [str(row.states[state]) for state in _STATES]
        cells.append((*group, product.heading, *states, str(row.samples), reasons))
    numbers = (*_STATES, "samples", "rejected")
    say_table(("model", "task", "dtype", "product", *numbers), cells, numbers, f"{config.name} in {store.root}")
    for plural, total in totals.items():
        shown = [state for state in _STATES if state != "damaged" or total[state]]
        counted = ", ".join(f"{total[state]} {state}" for state in shown)
        say(f"{total.total()} {plural}: {counted}")
    for line in _remarks(run, [node.artifact for _, node in nodes(run)]):
        say(line)
    done = all(total["done"] == total.total() for total in totals.values())
    return done and not (run.plan.failures or run.plan.unprepared or run.plan.undecided)


def collect(run: Run) -> Rows:
    """The rows of the table, those of a (model, task, precision) together.

    A rejected sample counts once, even if several methods reject it.
    """
    rows: Rows = defaultdict(Counts)
    empty = without_samples(run.plan, run.ledger)
    for product, node in nodes(run):
        artifact = node.artifact
        row = rows[artifact.model, artifact.task, artifact.dtype, product.name]
        row.states[node.state(run.ledger)] += 1
        row.samples = node.samples
        if rejects := (run.ledger.record(artifact) or {}).get("rejects"):
            row.rejected |= Counter(rejects)  # by reason, the largest count of any method
        if not node.made_of and (artifact.model, artifact.task) in empty:
            row.rejected |= Counter(empty[artifact.model, artifact.task])
    places = {columns: at for at, columns in enumerate(dict.fromkeys(row[:3] for row in rows))}
    return dict(sorted(rows.items(), key=lambda row: places[row[0][:3]]))


def _remarks(run: Run, artifacts: Sequence[Artifact]) -> Iterator[str]:
    """Lines about what the run leaves out, and about artifacts that wait, are damaged or stale."""
    plan, ledger = run.plan, run.ledger
    yield from (f"left out: {line}" for line in run.config.left_out)
    for model, task in plan.unprepared:
        yield f"{model}: {task} is not prepared: run `closelook prepare` with the same --config and --root"
    yield from by_reason(plan.failures)
    yield from map(undecided, plan.undecided)
    if plan.undefined:
        pairs = ", ".join(f"{method} on {model}" for model, method in plan.undefined)
        yield f"not defined, hence not planned: {pairs}"
    damaged = [artifact for artifact in artifacts if ledger.state(artifact) == "damaged"]
    yield from filter(None, map(ledger.damage, damaged))
    old = stale(ledger, artifacts)
    if old:
        yield f"{len(old)} stale records, which `closelook gc --yes` removes:"
        yield from (f"  {name}" for _, name in old)
