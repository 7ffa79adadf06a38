"""Relevance of tokens and of attention heads: the cells of the plan."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from jobs.methods import configured
from jobs.plan.products.record import Product, Wanted, each_method
from jobs.store import Ledger
from lrp_core.explained import TARGET

if TYPE_CHECKING:
    from jobs.config import ModelConfig, RunConfig
    from jobs.plan.cells import Plan


def heads_of(config: RunConfig, model: ModelConfig, task: str, methods: list[str]) -> dict[str, int]:
    """Cells of head relevance, which only the first precision of a task has."""
    return _finer(config, model, task, methods, HEADS.name)


def layers_of(config: RunConfig, model: ModelConfig, task: str, methods: list[str]) -> dict[str, int]:
    """Cells of relevance by layer, which only the first precision of a task has."""
    return _finer(config, model, task, methods, LAYERS.name)


def neurons_of(config: RunConfig, model: ModelConfig, task: str, methods: list[str]) -> dict[str, int]:
    """Cells of relevance of neurons, which only the first precision of a task has."""
    return _finer(config, model, task, methods, NEURONS.name)


def labels_of(config: RunConfig, model: ModelConfig, task: str, methods: list[str]) -> dict[str, int]:
    """Cells of relevance for every label, which only the first precision of a task has."""
    if config.task(task).output != "label" or task not in config.finer(LABELS.name):
        return {}
    records = configured(config)
    return {model.dtypes_for(task)[0]: sum(TARGET.name in records[name].explanations for name in methods)}


def _finer(config: RunConfig, model: ModelConfig, task: str, methods: list[str], product: str) -> dict[str, int]:
    records, wanted = configured(config), task in config.finer(product)
    return {model.dtypes_for(task)[0]: sum(product in records[name].gives for name in methods)} if wanted else {}


def _planned(product: str) -> Callable[[RunConfig, Plan, Ledger], Iterator[Wanted]]:
    def wanted(config: RunConfig, plan: Plan, ledger: Ledger) -> Iterator[Wanted]:
        return (Wanted(one.cell, one.rows) for one in plan.cells() if one.cell.product == product)

    return wanted


RELEVANCE = Product(
    name="relevance",
    heading="relevance",
    plural="cells",
    stage="attribute",
    wanted=_planned("relevance"),
    expected=each_method,
    outdated="relevance that is not wanted here",
)
HEADS = Product(
    name="heads",
    heading="heads",
    plural="cells",
    stage="attribute",
    wanted=_planned("heads"),
    expected=heads_of,
    outdated="heads that is not wanted here",
)
LAYERS = Product(
    name="layers",
    heading="layers",
    plural="cells",
    stage="attribute",
    wanted=_planned("layers"),
    expected=layers_of,
    outdated="layers that are not wanted here",
)
LABELS = Product(
    name="labels",
    heading="labels",
    plural="cells",
    stage="attribute",
    wanted=_planned("labels"),
    expected=labels_of,
    outdated="labels that are not wanted here",
)
NEURONS = Product(
    name="neurons",
    heading="neurons",
    plural="cells",
    stage="attribute",
    wanted=_planned("neurons"),
    expected=neurons_of,
    outdated="neurons that are not wanted here",
)

#: What is kept of some samples beside the relevance of tokens, each in passes of its own.
FINER = (HEADS, LAYERS, LABELS, NEURONS)
