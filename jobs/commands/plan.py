"""What a run will cost: measured seconds per token where there are any, else arithmetic of the published geometries."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain

import pyarrow.compute as pc
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from evaluation.schema import RUNTIME
from jobs.commands.plan_basis import Basis, defined
from jobs.commands.plan_choices import choice_costs, undecided
from jobs.commands.plan_curves import curves_costs
from jobs.commands.plan_finer import FinerCost, finer_costs
from jobs.commands.plan_forwards import Chosen, forwards, records
from jobs.commands.plan_speeds import FLOPS, SLOW_FLOAT64, Measured, speed, without_nodes
from jobs.config import ModelConfig, RunConfig
from jobs.plan.cells import ModelPlan, Plan, make_plan
from jobs.plan.corpus import surveyed
from jobs.plan.geometries import Geometry, shape_of
from jobs.plan.products.contexts import wanted_contexts
from jobs.plan.products.relevance import FINER
from jobs.stages.run import STAGES
from jobs.store import Ledger, Store


@dataclass(frozen=True)
class Estimate:
    """One task of a model in one precision: all its methods, which share passes."""

    model: str
    task: str
    dtype: str
    cells: int
    missing: int
    samples: int
    tokens: int
    seconds: float | None  # of what is missing, on one device; None when nothing is known
    measured: bool


def costs(config: RunConfig, store: Store, plan: Plan, measured: Measured) -> list[Estimate]:
    """Estimates by model, task and precision. Models out of reach are estimated from the geometry they are known by."""
    by_name = {model.name: model for model in plan.models}
    return [
        cost for model in config.models for cost in _of_model(config, store, model, by_name.get(model.name), measured)
    ]


def show(config: RunConfig, store: Store, console: Console) -> None:
    """Print the cells, the estimated cost of each group, and the total."""
    plan = make_plan(config, store)
    measured = seconds_per_token(config, store)
    estimates = costs(config, store, plan, measured)
    title = f"plan of {config.name} in {store.root}"
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, collapse_padding=True)
    for heading in ("model", "task", "dtype"):
        table.add_column(heading)
    for heading in ("cells", "missing", "samples", "tokens", "device time", "from"):
        table.add_column(heading, justify="right")
    for cost in estimates:
        source = "" if cost.seconds is None else "measured" if cost.measured else "geometry"
        numbers = (str(cost.cells), str(cost.missing), f"{cost.samples:,}", f"{cost.tokens:,}")
        table.add_row(cost.model, cost.task, cost.dtype, *numbers, duration(cost.seconds), source)
    console.print(table)
    cells, missing = sum(cost.cells for cost in estimates), sum(cost.missing for cost in estimates)
    known = [cost.seconds for cost in estimates if cost.seconds is not None]
    unknown = f", without {len(estimates) - len(known)} rows that are unknown" if len(known) < len(estimates) else ""
    total = f"about {duration(sum(known))} of device time{unknown}" if known or not estimates else "device time unknown"
    console.print(f"{cells} cells, {missing} missing, {total}")
    ledger = Ledger(store)
    basis = Basis(config, ledger, plan, measured)
    parts = (part(basis) for part in (_choices, _finer, _curves))
    for line in (*chain(*parts), *contexts_line(config, ledger, plan)):
        console.print(line, markup=False)
    if any(cost.seconds is not None and not cost.measured for cost in estimates):
        speeds = ", ".join(f"{dtype} {flops / 1e12:g}" for dtype, flops in FLOPS.items())
        console.print(f"from geometry: assumes one 80 GB accelerator that sustains ({speeds}) TFLOP/s")
        if config.ray.nodes:
            console.print(f"or what ray.nodes say; float64 {SLOW_FLOAT64 / 1e12:.2g} where they call it slow")
    for line in without_nodes(config):
        console.print(line, markup=False)
    console.print(f"not estimated: the stages {', '.join(left_open(config))}, and loading models")
    for line in by_reason(plan.failures):
        console.print(f"not checked: {line}", markup=False)


def left_open(config: RunConfig) -> list[str]:
    """The stages of this run whose cost nobody says."""
    wanted = [one for one in STAGES.values() if one.setting is None or getattr(config, one.setting) is not None]
    return [one.name for one in wanted if not one.planned]


def _choices(basis: Basis) -> Iterator[str]:
    """A line of what choosing options costs, if there are lists of them, and one for each method that waits for it."""
    estimates = list(choice_costs(basis))
    if estimates:
        made, total = sum(cost.made for cost in estimates), _total([cost.seconds for cost in estimates])
        trials, forwards = sum(cost.trials for cost in estimates), sum(cost.forwards for cost in estimates)
        yield (
            f"{len(estimates)} choices of options among {trials} trials, {len(estimates) - made} missing: "
            f"{forwards:,} forwards of a sample at most, device time {duration(total)}"
        )
    for choice in basis.plan.undecided:
        yield f"{choice}: {undecided(choice)}"


def _total(seconds: list[float | None]) -> float | None:
    """The sum; None where one is not known."""
    known = [one for one in seconds if one is not None]
    return sum(known) if len(known) == len(seconds) else None


def _finer(basis: Basis) -> Iterator[str]:
    """A line for each kind of finer relevance that is asked for."""
    kinds: dict[str, list[FinerCost]] = defaultdict(list)
    for cost in finer_costs(basis):
        kinds[cost.product.heading].append(cost)
    for heading, estimates in kinds.items():
        cells, missing = sum(cost.cells for cost in estimates), sum(cost.missing for cost in estimates)
        forwards, total = sum(cost.forwards for cost in estimates), _total([cost.seconds for cost in estimates])
        yield (
            f"{cells} cells of {heading} among them, {missing} missing: {forwards:,} more forwards of a sample, "
            f"backwards included, device time {duration(total)}"
        )


def _curves(basis: Basis) -> Iterator[str]:
    """A line of what the faithfulness curves cost, if there are any."""
    estimates = list(curves_costs(basis))
    if estimates:
        total = duration(_total([cost.seconds for cost in estimates]))
        sets, missing = sum(cost.cells for cost in estimates), sum(cost.missing for cost in estimates)
        forwards = sum(cost.forwards for cost in estimates)
        yield (
            f"{sets} sets of faithfulness curves, {missing} missing: {forwards:,} forwards of a sample at most, "
            f"device time {total}, less where states are equal"
        )


def contexts_line(config: RunConfig, ledger: Ledger, plan: Plan) -> Iterator[str]:
    """A line of the corpus that neurons are looked for in, if there is one."""
    cells = list(wanted_contexts(config, plan, ledger))
    if cells:
        survey = surveyed(config, ledger).survey
        missing = sum(not ledger.is_done(cell.artifact) for cell in cells)
        yield (
            f"a corpus of {survey.texts:,} texts, {survey.characters:,} characters, read once by {len(cells)} models: "
            f"{missing} missing"
        )


def by_reason(failures: dict[str, str]) -> list[str]:
    """One line for all models that fail alike. `failures` are messages that start with "model <name>", by name."""
    names: dict[str, list[str]] = {}
    for name, message in failures.items():
        names.setdefault(message.removeprefix(f"model {name} "), []).append(name)
    return [f"{', '.join(alike)}: {reason}" for reason, alike in names.items()]


def duration(seconds: float | None) -> str:
    if seconds is None:
        return "unknown"
    for unit, size in (("days", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * size:
            return f"{seconds / size:,.1f} {unit}"
    return f"{seconds:,.1f} s"


def _of_model(
    config: RunConfig,
    store: Store,
    model: ModelConfig,
    plan: ModelPlan | None,
    measured: Measured,
) -> Iterator[Estimate]:
    geometry, ledger = shape_of(model), Ledger(store)
    for task in config.tasks_for(model) if plan is None else plan.tasks:
        samples, tokens = _size(config, plan, task)
        for dtype in model.dtypes_for(task):
            names = defined(config, model, plan)
            missing = list(names)
            cells = len(names) + _finer_cells(config, model, task, names, dtype)
            unfinished, chosen = cells, {}
            if plan is not None and task in plan.inputs:
                planned = [p.cell for p in plan.cells if (p.cell.task, p.cell.dtype) == (task, dtype)]
                chosen = {p.cell.method: p.chosen for p in plan.cells if (p.cell.task, p.cell.dtype) == (task, dtype)}
                todo = [cell for cell in planned if not ledger.is_done(cell)]
                open_ = [c.artifact for c in plan.choices if c.chosen is None]
                waiting = [a.method for a in open_ if (a.task, a.dtype) == (task, dtype)]
                more = len(waiting) + _finer_cells(config, model, task, waiting, dtype)
                cells, unfinished = len(planned) + more, len(todo) + more
                missing = [*(cell.method for cell in todo if cell.product == "relevance"), *waiting]
            seconds, is_measured = _seconds(config, model, geometry, dtype, missing, chosen, samples, tokens, measured)
            yield Estimate(model.name, task, dtype, cells, unfinished, samples, tokens, seconds, is_measured)


def _finer_cells(config: RunConfig, model: ModelConfig, task: str, names: list[str], dtype: str) -> int:
    """Cells of finer relevance that these methods add in this precision."""
    return sum(product.expected(config, model, task, names).get(dtype, 0) for product in FINER)


def _size(config: RunConfig, plan: ModelPlan | None, task: str) -> tuple[int, int]:
    if plan is not None and task in plan.inputs:
        return plan.inputs[task].table.num_rows, int(plan.inputs[task].lengths.sum())
    samples, length = config.task(task).published
    samples = min(samples, config.tasks[task].limit or samples)
    return samples, samples * length


def _seconds(
    config: RunConfig,
    model: ModelConfig,
    geometry: Geometry | None,
    dtype: str,
    missing: list[str],
    chosen: Chosen,
    samples: int,
    tokens: int,
    measured: Measured,
) -> tuple[float | None, bool]:
    """Seconds for the missing methods, and whether every one of their passes was measured on this model."""
    length = tokens / max(1, samples)
    passes = {method.pass_name for method in records(config, missing, length, chosen)}
    known = {name: measured[model.name, dtype, name] for name in passes if (model.name, dtype, name) in measured}
    if len(known) == len(passes):
        return tokens * sum(known.values()), True
    flops = speed(config, model, dtype)
    if geometry is None or flops is None:
        return None, False
    operations = 2.0 * geometry.block_parameters * tokens * forwards(config, missing, length, chosen)
    return operations / flops, False


def seconds_per_token(config: RunConfig, store: Store) -> Measured:
    """Wall seconds per padded token by (model, dtype, pass), from the runtimes of the store."""
    wall: dict[tuple[str, str, str], float] = defaultdict(float)
    padded: dict[tuple[str, str, str], float] = defaultdict(float)
    for model in config.models:
        for task in config.tasks:
            for dtype in model.dtypes_for(task):
                shards = store.files(store.runtime(model.name, task, dtype))
                if not shards:
                    continue
                table = store.read(shards, RUNTIME, ["method", "stage", "length", "batch", "wall_s"])
                table = table.filter(pc.equal(table["stage"], "method"))
                tokens = pc.multiply(table["length"], table["batch"])
                sums = table.append_column("tokens", tokens).group_by("method")
                for row in sums.aggregate([("wall_s", "sum"), ("tokens", "sum")]).to_pylist():
                    place = (model.name, dtype, row["method"])
                    wall[place] += row["wall_s_sum"]
                    padded[place] += row["tokens_sum"]
    return {place: wall[place] / padded[place] for place in wall if padded[place]}
