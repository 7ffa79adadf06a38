"""What finer relevance will cost, which is computed beside that of tokens: of heads, layers, labels and neurons."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from jobs.commands.plan_forwards import Chosen, forwards, forwards_of_labels, records
from jobs.commands.plan_speeds import Measured, speed
from jobs.config import ModelConfig, RunConfig
from jobs.plan.cells import ModelPlan, Plan
from jobs.plan.geometries import shape_of
from jobs.plan.products.record import Product
from jobs.plan.products.relevance import FINER, LABELS
from jobs.plan.units import LABELS_PASS
from jobs.store import Ledger


@dataclass(frozen=True)
class FinerCost:
    """One kind of finer relevance of one task of a model."""

    product: Product
    cells: int
    missing: int
    forwards: int  # of a sample, for what is missing; a backward counts as one
    seconds: float | None  # on one device; None when nothing is known


def finer_costs(
    config: RunConfig,
    ledger: Ledger,
    plan: Plan,
    measured: Measured,
    named: Mapping[str, list[str]],
) -> Iterator[FinerCost]:
    """Costs by product, model and task.

    `measured` are seconds per token by (model, dtype, pass), `named` the methods of each model by its name.
    """
    by_name = {model.name: model for model in plan.models}
    for product in FINER:
        for model in config.models:
            for task in plan.tasks_of(config, model):
                expected = product.expected(config, model, task, named[model.name])
                if sum(expected.values()):
                    missing = _missing(config, ledger, product, model, by_name.get(model.name), task, named[model.name])
                    yield _of_task(config, product, model, by_name.get(model.name), task, expected, missing, measured)


def _missing(
    config: RunConfig,
    ledger: Ledger,
    product: Product,
    model: ModelConfig,
    planned: ModelPlan | None,
    task: str,
    named: list[str],
) -> Chosen:
    """The methods whose relevance of this kind is not there, with the options that were chosen for them."""
    if planned is not None and task in planned.inputs:
        cells = [one for one in planned.cells if (one.cell.product, one.cell.task) == (product.name, task)]
        return {one.cell.method: one.chosen for one in cells if not ledger.is_done(one.cell)}
    return {name: {} for name in named if sum(product.expected(config, model, task, [name]).values())}


def _of_task(
    config: RunConfig,
    product: Product,
    model: ModelConfig,
    planned: ModelPlan | None,
    task: str,
    expected: Mapping[str, int],
    missing: Chosen,
    measured: Measured,
) -> FinerCost:
    (dtype,), lengths = expected, _lengths(config, product, planned, task)
    mean, tokens = float(lengths.mean()) if len(lengths) else 0.0, int(lengths.sum())
    open_options = {name: options for name, options in missing.items() if options}
    methods = records(config, list(missing), mean, open_options)
    if product is LABELS:
        labels = config.task(task).labels if planned is None else planned.resolved.labels
        each, suffix = forwards_of_labels(methods, len(labels), mean), LABELS_PASS
    else:
        each, suffix = forwards(config, list(missing), mean, open_options), ""
    geometry, flops = shape_of(model), speed(config, model, dtype)
    rates = [measured.get((model.name, dtype, f"{name}{suffix}")) for name in {one.pass_name for one in methods}]
    told = [rate for rate in rates if rate is not None]
    seconds = None
    if geometry is not None and flops is not None:
        seconds = 2.0 * geometry.block_parameters * tokens * each / flops
    if len(told) == len(rates):
        seconds = tokens * sum(told)
    return FinerCost(product, sum(expected.values()), len(missing), round(each * len(lengths)), seconds)


def _lengths(config: RunConfig, product: Product, planned: ModelPlan | None, task: str) -> np.ndarray:
    """Tokens of each sample whose relevance is kept so finely."""
    kept = config.finer(product.name)[task]
    if planned is not None and task in planned.inputs:
        inputs = planned.inputs[task]
        return inputs.lengths[inputs.subset(kept, config.seed)]
    samples, length = config.task(task).published
    samples = min(samples, config.tasks[task].limit or samples)
    return np.full(samples if kept is None else min(samples, kept), length)
