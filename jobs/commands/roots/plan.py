"""`closelook plan`: estimates the cost of a run from measured seconds per token, or from the models' geometries."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow.compute as pc

from closelook.evaluation.schema import RUNTIME
from closelook.jobs.commands.roots.plan_costs import (
    FLOPS,
    SLOW_FLOAT64,
    Basis,
    Measured,
    Subject,
    choice_costs,
    curves_costs,
    finer_costs,
    total,
    without_nodes,
)
from closelook.jobs.config import RunConfig
from closelook.jobs.plan.cells import make_plan
from closelook.jobs.plan.choices import undecided
from closelook.jobs.plan.corpus import surveyed
from closelook.jobs.plan.forwards import forwards, records
from closelook.jobs.plan.node import Run
from closelook.jobs.products.neurons import contexts
from closelook.jobs.products.relevance import FINER
from closelook.jobs.products.table import of_packages
from closelook.jobs.stages.record import STAGES
from closelook.jobs.store import Ledger, Store
from closelook.terminal import say, say_table


@dataclass(frozen=True)
class Estimate:
    """The estimated cost of all methods for a model, task and precision; methods share forward passes."""

    model: str
    task: str
    dtype: str
    cells: int
    missing: int
    samples: int
    tokens: int
    seconds: float | None  # for the missing cells, on one device; None if unknown
    measured: bool  # True if `seconds` follow from measured passes of this model, False if from its geometry

    @property
    def source(self) -> str:
        """The origin of `seconds`: "measured", "geometry", or "" if unknown."""
        if self.seconds is None:
            return ""
        return "measured" if self.measured else "geometry"


def show(config: RunConfig, store: Store) -> None:
    """Print the cells and estimated cost of each model, task and precision, the total, and further parts."""
    ledger, plan = Ledger(store), make_plan(config, store)
    basis = Basis(config, ledger, plan, seconds_per_token(config, store))
    estimates, rows = costs(basis), []
    cells = missing = 0
    seconds: list[float] = []
    for cost in estimates:
        numbers = (str(cost.cells), str(cost.missing), f"{cost.samples:,}", f"{cost.tokens:,}")
        rows.append((cost.model, cost.task, cost.dtype, *numbers, duration(cost.seconds), cost.source))
        cells += cost.cells
        missing += cost.missing
        if cost.seconds is not None:
            seconds.append(cost.seconds)
    headings = ("cells", "missing", "samples", "tokens", "device time", "from")
    say_table(("model", "task", "dtype", *headings), rows, headings, f"plan of {config.name} in {store.root}")
    unknown = len(estimates) - len(seconds)
    time = f"about {duration(sum(seconds))} of device time"
    if estimates and not seconds:
        time = "device time unknown"
    elif unknown:
        time = f"{time}, not counting {unknown} rows of unknown cost"
    say(f"{cells} cells, {missing} missing, {time}")
    for line in (*_parts(basis), *contexts_line(basis), *brought_lines(basis)):
        say(line)
    if any(cost.source == "geometry" for cost in estimates):
        speeds = ", ".join(f"{dtype} {flops / 1e12:g}" for dtype, flops in FLOPS.items())
        say(f"from geometry: assumes one 80 GB accelerator that sustains ({speeds}) TFLOP/s")
        if config.ray.nodes:
            say(f"or as ray.nodes configure; float64 {SLOW_FLOAT64 / 1e12:.2g} on nodes that are labelled as slow")
    for line in without_nodes(config):
        say(line)
    unread = dict.fromkeys(subject.task for subject in basis.subjects() if subject.is_unread)
    if unread:
        say(f"not counted, as `closelook prepare` has not read them: the samples of {', '.join(unread)}")
    say(f"not estimated: the stages {', '.join(left_open(config))}, and loading models")
    for line in by_reason(plan.failures):
        say(f"not checked, as it cannot be loaded: {line}")


def left_open(config: RunConfig) -> list[str]:
    """The names of the stages of this run whose cost is not estimated."""
    not_planned = (stage for stage in STAGES.values() if not stage.planned)
    return [stage.name for stage in not_planned if stage.setting is None or getattr(config, stage.setting) is not None]


def _parts(basis: Basis) -> Iterator[str]:
    """A line about each further part of the run: choices of options, finer relevance, deletion and insertion curves."""
    choices = total(choice_costs(basis))
    if choices.cells:
        yield (
            f"{choices.cells} choices of options among {choices.trials} trials, {choices.missing} missing: "
            f"{choices.forwards:,} forwards of a sample at most, device time {duration(choices.seconds)}"
        )
    yield from map(undecided, basis.plan.undecided)
    for product in FINER.values():
        finer = total(finer_costs(basis, product))
        if finer.cells:
            yield (
                f"{finer.cells} cells of {product.heading} among them, {finer.missing} missing: {finer.forwards:,} "
                f"more forwards of a sample, backwards included, device time {duration(finer.seconds)}"
            )
    costs = list(curves_costs(basis))
    if costs:
        curves = total(costs)
        yield (
            f"{curves.cells} sets of faithfulness curves, {curves.missing} missing: {curves.forwards:,} forwards of a "
            f"sample at most, device time {duration(curves.seconds)}, less where states are equal"
        )


def brought_lines(basis: Basis) -> Iterator[str]:
    """A line about each product that an installed package adds."""
    run = Run(basis.config, basis.plan, basis.ledger)
    for product in of_packages():
        nodes = list(product.nodes(run))
        missing = [node for node in nodes if node.state(basis.ledger) != "done"]
        if nodes:
            forwards = sum(map(product.shown.forwards, missing))
            yield f"{len(nodes)} {product.title}, {len(missing)} missing: {forwards:,g} forwards of a sample"


def contexts_line(basis: Basis) -> Iterator[str]:
    """A line about the corpus of max-activating examples, if the run has one."""
    ledger = basis.ledger
    cells = list(contexts.nodes(Run(basis.config, basis.plan, ledger)))
    if cells:
        survey = surveyed(basis.config, ledger).survey
        missing = sum(not ledger.is_done(cell.artifact) for cell in cells)
        yield (
            f"a corpus of {survey.texts:,} texts, {survey.characters:,} characters, read once by {len(cells)} models: "
            f"{missing} missing"
        )


def by_reason(failures: dict[str, str]) -> list[str]:
    """One line for all models that fail for the same reason. `failures` are messages "model NAME ..." by name."""
    names: dict[str, list[str]] = {}
    for name, message in failures.items():
        names.setdefault(message.removeprefix(f"model {name} "), []).append(name)
    return [f"{', '.join(alike)}: {reason}" for reason, alike in names.items()]


def duration(seconds: float | None) -> str:
    """A time in words, in the largest unit of which it has at least two, such as "2.5 h"; "unknown" for None."""
    if seconds is None:
        return "unknown"
    for unit, size in (("days", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * size:
            return f"{seconds / size:,.1f} {unit}"
    return f"{seconds:,.1f} s"


def costs(basis: Basis) -> list[Estimate]:
    """The estimate for every model, task and precision; by geometry for models that cannot be loaded."""
    return [
        _estimate(basis, subject, dtype)
        for subject in basis.subjects()
        for dtype in subject.model.dtypes_for(subject.task)
    ]


def _estimate(basis: Basis, subject: Subject, dtype: str) -> Estimate:
    """The estimate for a task of a model in one precision."""
    config, model, task = basis.config, subject.model, subject.task
    waiting = subject.waiting(dtype)
    without_key = len(waiting)
    for product in FINER.values():
        without_key += product.expected(config, model, task, waiting).get(dtype, 0)
    cells = unfinished = without_key
    methods, chosen = [], {}
    for planned in subject.cells:
        cell = planned.artifact
        if cell.dtype != dtype:
            continue
        cells += 1
        chosen[cell.method] = planned.chosen
        if not basis.ledger.is_done(cell):
            unfinished += 1
            if cell.product == "relevance":
                methods.append(cell.method)
    methods += waiting
    lengths = subject.lengths()
    samples, tokens = len(lengths), int(lengths.sum())
    length = tokens / max(1, samples)
    dearest, count = records(config, methods, length, chosen), forwards(config, methods, length, chosen, task)
    seconds, measured = subject.seconds_of(dearest, dtype, tokens, count)
    return Estimate(model.name, task, dtype, cells, unfinished, samples, tokens, seconds, measured)


def seconds_per_token(config: RunConfig, store: Store) -> Measured:
    """Measured seconds per token, padding included, by (model, precision, pass), from the store's runtimes."""
    wall: dict[tuple[str, str, str], float] = defaultdict(float)
    padded: dict[tuple[str, str, str], float] = defaultdict(float)
    for model in config.models:
        for task in config.tasks:
            for dtype in model.dtypes_for(task):
                shards = store.files(store.runtime(model.name, task, dtype))
                if not shards:
                    continue
                table = store.read(shards, RUNTIME, ["method", "stage", "length", "batch", "wall_s"])
                # whole passes; other rows time a part of one (forward, backward, aggregate)
                table = table.filter(pc.equal(table["stage"], "method"))
                tokens = pc.multiply(table["length"], table["batch"])
                sums = table.append_column("tokens", tokens).group_by("method")
                for row in sums.aggregate([("wall_s", "sum"), ("tokens", "sum")]).to_pylist():
                    key = (model.name, dtype, row["method"])  # the column holds the name of the pass
                    wall[key] += row["wall_s_sum"]
                    padded[key] += row["tokens_sum"]
    return {key: wall[key] / padded[key] for key in wall if padded[key]}
