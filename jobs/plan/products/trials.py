"""Trials of the options that lists leave open, and the choice among them (see `jobs.plan.choices`)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from jobs.methods import left_open
from jobs.plan.products.record import Product, Wanted
from jobs.store import Ledger

if TYPE_CHECKING:
    from jobs.config import ModelConfig, RunConfig
    from jobs.plan.cells import Plan


def _wanted(config: RunConfig, plan: Plan, ledger: Ledger) -> Iterator[Wanted]:
    return (Wanted(choice.artifact, len(choice.rows)) for model in plan.models for choice in model.choices)


def _expected(config: RunConfig, model: ModelConfig, task: str, methods: list[str]) -> dict[str, int]:
    """One of each method with a list, in every precision."""
    count = sum(entry.name in methods and bool(left_open(entry)) for entry in config.methods_of(model))
    return dict.fromkeys(model.dtypes_for(task), count)


TRIALS = Product(
    name="trials",
    heading="choices",
    plural="choices of options",
    stage="select",
    wanted=_wanted,
    expected=_expected,
    outdated="trials of other options, samples or settings",
)
