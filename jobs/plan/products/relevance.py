"""Relevance of tokens and of attention heads: the cells of the plan."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from jobs.methods import configured
from jobs.plan.products.record import Expected, Product, Wanted, each_method
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


def _attributed(name: str, expected: Expected, outdated: str = "") -> Product:
    """What `attribute` makes of its cells, under the name of one product or another."""

    def wanted(config: RunConfig, plan: Plan, ledger: Ledger) -> Iterator[Wanted]:
        return (Wanted(one.cell, one.rows) for one in plan.cells() if one.cell.product == name)

    outdated = outdated or f"{name} that are not wanted here"
    return Product(name, name, "cells", "attribute", wanted, expected, outdated)


RELEVANCE = _attributed("relevance", each_method, "relevance that is not wanted here")
HEADS = _attributed("heads", heads_of)
LAYERS = _attributed("layers", layers_of)
LABELS = _attributed("labels", labels_of)
NEURONS = _attributed("neurons", neurons_of)

#: What is kept of some samples beside the relevance of tokens, each in passes of its own.
FINER = (HEADS, LAYERS, LABELS, NEURONS)
