"""`closelook plan`: counts the artifacts of a run, and estimates seconds by the units in the logs of the root."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

from closelook.jobs.config import RunConfig
from closelook.jobs.plan.cells import make_plan
from closelook.jobs.plan.choices import undecided
from closelook.jobs.plan.node import Run
from closelook.jobs.products.table import PRODUCTS
from closelook.jobs.stages.record import STAGES
from closelook.jobs.store import Artifact, Ledger, Store
from closelook.terminal import say, say_table

#: Seconds a row of an artifact, by product, model, task and precision, and by product and model.
Rates = Mapping[tuple[str, ...], float]


@dataclass
class Estimate:
    """The artifacts of a product for a model, task and precision, and the seconds for those that are missing."""

    artifacts: int = 0
    missing: int = 0
    rows: int = 0  # samples of the missing artifacts
    seconds: list[float | None] = field(default_factory=list)  # for each missing artifact; None: no unit was timed


def show(config: RunConfig, store: Store) -> None:
    """Print the artifacts and estimated seconds of each model, task, precision and product, and what is not known."""
    ledger = Ledger(store)
    run = Run(config, make_plan(config, store, ledger=ledger), ledger)
    rates, estimates = seconds_a_row(store), defaultdict[tuple[str, ...], Estimate](Estimate)
    for product in PRODUCTS.values():
        for node in product.nodes(run) if STAGES[product.stage].planned else ():
            at = node.artifact
            estimate = estimates[at.model, at.task, at.dtype, product.heading]
            estimate.artifacts += 1
            if node.state(ledger) != "done":
                estimate.missing += 1
                estimate.rows += node.samples
                rate = rate_of(rates, at)
                estimate.seconds.append(None if rate is None else rate * node.samples)
    rows, every = [], list[float | None]()
    for columns, estimate in estimates.items():
        every += estimate.seconds
        counts = (str(estimate.artifacts), str(estimate.missing), f"{estimate.rows:,}")
        rows.append((*columns, *counts, duration(estimate.seconds)))
    numbers = ("artifacts", "missing", "rows", "device time")
    say_table(("model", "task", "dtype", "product", *numbers), rows, numbers, f"plan of {config.name} in {store.root}")
    total = sum(estimate.artifacts for estimate in estimates.values())
    say(f"{total} artifacts, {len(every)} missing, device time {duration(every)}")
    if None in every:
        say("unknown times become known once a unit of such an artifact was computed: run a few samples first")
    for model, task in run.plan.unprepared:
        say(f"{model}: {task} is counted after `closelook prepare`")
    for choice in run.plan.undecided:
        say(undecided(choice))
    for line in by_reason(run.plan.failures):
        say(line)


def seconds_a_row(store: Store) -> Rates:
    """The mean seconds of computing a row of an artifact, from the units in the logs of the root's runs."""
    seconds: Counter[tuple[str, ...]] = Counter()
    rows: Counter[tuple[str, ...]] = Counter()
    for path in store.files("logs", ".jsonl", recursive=True):
        for line in map(json.loads, store.read_bytes(path).splitlines()):
            if line["event"] != "unit" or line["error"] or not line["rows"]:
                continue
            product = line["unit"].partition(".")[0]
            task, dtype, _ = line["unit"].removeprefix(f"{product}.{line['model']}.").rsplit(".", 2)
            for key in ((product, line["model"], task, dtype), (product, line["model"])):
                seconds[key] += line["wall_s"]
                rows[key] += line["rows"] * max(1, len(line["explained"]))  # a row of each artifact of the unit
    return {key: seconds[key] / rows[key] for key in rows}


def rate_of(rates: Rates, artifact: Artifact) -> float | None:
    """The seconds a row of this artifact: as measured for its task and precision, else for others of its model."""
    place = artifact.product, artifact.model
    return rates.get((*place, artifact.task, artifact.dtype), rates.get(place))


def by_reason(failures: dict[str, str]) -> list[str]:
    """One line for all models that fail for the same reason. `failures` are messages "model NAME ..." by name."""
    names: dict[str, list[str]] = {}
    for name, message in failures.items():
        names.setdefault(message.removeprefix(f"model {name} "), []).append(name)
    return [f"{', '.join(alike)}: {reason}" for reason, alike in names.items()]


def duration(parts: list[float | None]) -> str:
    """The sum of times in words, in the largest unit of which it has two, such as "2.5 h"; "unknown" if one is None."""
    seconds = 0.0
    for part in parts:
        if part is None:
            return "unknown"
        seconds += part
    for unit, size in (("days", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * size:
            return f"{seconds / size:,.1f} {unit}"
    return f"{seconds:,.1f} s"
