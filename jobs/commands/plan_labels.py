"""What relevance for every label of classifiers will cost: forwards, and a backward for each label."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from jobs.commands.plan_speeds import speed
from jobs.config import RunConfig
from jobs.methods import configured
from jobs.plan.cells import ModelPlan, Plan, PlannedCell
from jobs.plan.geometries import geometry_of
from jobs.plan.units import LABELS_PASS
from jobs.store import Ledger
from lrp_core.labels import AT_ONCE
from lrp_core.method import Method


@dataclass(frozen=True)
class LabelsCost:
    """Every label of one task of a model."""

    cells: int
    missing: int
    forwards: int  # of a sample, for what is missing; a backward counts as one
    seconds: float | None  # on one device; None when nothing is known


def labels_costs(
    config: RunConfig,
    ledger: Ledger,
    plan: Plan,
    measured: Mapping[tuple[str, str, str], float],
) -> Iterator[LabelsCost]:
    """Costs by model and task, of what is prepared. `measured` are seconds per token by (model, dtype, pass)."""
    for model in plan.models:
        for task in model.inputs:
            cells = [one for one in model.cells if (one.cell.product, one.cell.task) == ("labels", task)]
            if cells:
                missing = [one for one in cells if not ledger.is_done(one.cell)]
                yield _of_task(config, model, task, cells, missing, measured)


def _of_task(
    config: RunConfig,
    model: ModelPlan,
    task: str,
    cells: Sequence[PlannedCell],
    missing: Sequence[PlannedCell],
    measured: Mapping[tuple[str, str, str], float],
) -> LabelsCost:
    known, inputs = configured(config), model.inputs[task]
    lengths = inputs.lengths[inputs.subset(config.finer("labels")[task], config.seed)]
    mean, tokens = float(lengths.mean()) if len(lengths) else 0.0, int(lengths.sum())
    methods = [known[one.cell.method].configured(**one.chosen) for one in missing]
    each = forwards_of_labels(methods, len(model.resolved.labels), mean)
    dtype, geometry = cells[0].cell.dtype, geometry_of(model.resolved.config.id)
    flops = speed(config, model.resolved.config, dtype)
    rates = [measured.get((model.name, dtype, f"{name}{LABELS_PASS}")) for name in {one.pass_name for one in methods}]
    told = [rate for rate in rates if rate is not None]
    seconds = None
    if geometry is not None and flops is not None:
        seconds = 2.0 * geometry.block_parameters * tokens * each / flops
    if len(told) == len(rates):
        seconds = tokens * sum(told)
    return LabelsCost(len(cells), len(missing), round(each * len(lengths)), seconds)


def forwards_of_labels(methods: Sequence[Method], labels: int, length: float) -> float:
    """What the passes of `methods` cost for every label of a sample of so many tokens, in forwards."""
    passes: dict[str, list[Method]] = {}
    for method in methods:
        passes.setdefault(method.pass_name, []).append(method)
    total = 0.0
    for alike in passes.values():
        times = -(-labels // AT_ONCE) if alike[0].shares_forwards else labels
        backwards = len({method.rules for method in alike if method.rules is not None})
        total += times * alike[0].cost(length) + labels * backwards
    return total
