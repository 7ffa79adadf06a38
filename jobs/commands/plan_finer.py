"""What finer relevance will cost, which is computed beside that of tokens: of heads, layers, labels and neurons."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np

from jobs.commands.plan_basis import Basis, Subject
from jobs.commands.plan_forwards import Chosen, forwards, forwards_of_labels, records
from jobs.commands.plan_speeds import speed
from jobs.config import RunConfig
from jobs.plan.geometries import shape_of
from jobs.plan.products.record import Product
from jobs.plan.products.relevance import FINER, LABELS
from jobs.plan.units import LABELS_PASS


@dataclass(frozen=True)
class FinerCost:
    """One kind of finer relevance of one task of a model."""

    product: Product
    cells: int
    missing: int
    forwards: int  # of a sample, for what is missing; a backward counts as one
    seconds: float | None  # on one device; None when nothing is known


def finer_costs(basis: Basis) -> Iterator[FinerCost]:
    """Costs by product, model and task."""
    for product in FINER:
        for subject in basis.subjects():
            expected = product.expected(basis.config, subject.model, subject.task, subject.methods)
            if sum(expected.values()):
                yield _of_task(basis, product, subject, expected)


def _missing(basis: Basis, product: Product, subject: Subject) -> Chosen:
    """The methods whose relevance of this kind is not there, with the options that were chosen for them."""
    if subject.planned is not None and subject.inputs is not None:
        own = (product.name, subject.task)
        cells = [one for one in subject.planned.cells if (one.cell.product, one.cell.task) == own]
        return {one.cell.method: one.chosen for one in cells if not basis.ledger.is_done(one.cell)}
    expected = partial(product.expected, basis.config, subject.model, subject.task)
    return {name: {} for name in subject.methods if sum(expected([name]).values())}


def _of_task(basis: Basis, product: Product, subject: Subject, expected: Mapping[str, int]) -> FinerCost:
    config, model, planned, task = basis.config, subject.model, subject.planned, subject.task
    missing, (dtype,), lengths = _missing(basis, product, subject), expected, _lengths(config, product, subject)
    mean, tokens = float(lengths.mean()) if len(lengths) else 0.0, int(lengths.sum())
    open_options = {name: options for name, options in missing.items() if options}
    methods = records(config, list(missing), mean, open_options)
    if product is LABELS:
        labels = config.task(task).labels if planned is None else planned.resolved.labels
        each, suffix = forwards_of_labels(methods, len(labels), mean), LABELS_PASS
    else:
        each, suffix = forwards(config, list(missing), mean, open_options), ""
    geometry, flops = shape_of(model), speed(config, model, dtype)
    rates = [basis.measured.get((model.name, dtype, f"{name}{suffix}")) for name in {one.pass_name for one in methods}]
    told = [rate for rate in rates if rate is not None]
    seconds = None
    if geometry is not None and flops is not None:
        seconds = 2.0 * geometry.block_parameters * tokens * each / flops
    if len(told) == len(rates):
        seconds = tokens * sum(told)
    return FinerCost(product, sum(expected.values()), len(missing), round(each * len(lengths)), seconds)


def _lengths(config: RunConfig, product: Product, subject: Subject) -> np.ndarray:
    """Tokens of each sample whose relevance is kept so finely."""
    kept, inputs = config.finer(product.name)[subject.task], subject.inputs
    if inputs is not None:
        return inputs.lengths[inputs.subset(kept, config.seed)]
    samples, length = config.task(subject.task).published
    samples = min(samples, config.tasks[subject.task].limit or samples)
    return np.full(samples if kept is None else min(samples, kept), length)
