"""What a plan estimates costs for, each task of each model, and what it estimates them from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from jobs.commands.plan_speeds import Measured
from jobs.config import ModelConfig, RunConfig
from jobs.methods import configured, defined_options
from jobs.plan.cells import ModelPlan, Plan
from jobs.plan.geometries import shape_of
from jobs.plan.inputs import Inputs
from jobs.store import Ledger
from lrp_core.capabilities import Capability


@dataclass(frozen=True)
class Subject:
    """A task of a model, and the methods that exist for the model."""

    model: ModelConfig
    planned: ModelPlan | None  # None where the model is out of reach
    task: str
    methods: list[str]

    @property
    def inputs(self) -> Inputs | None:
        """The samples of the task as the model reads them; None before they are prepared."""
        return None if self.planned is None else self.planned.inputs.get(self.task)


@dataclass(frozen=True)
class Basis:
    """A run, what of it is there and planned, and the seconds per token that were measured."""

    config: RunConfig
    ledger: Ledger
    plan: Plan
    measured: Measured

    def subjects(self) -> Iterator[Subject]:
        """Every task of every model, in the order of the config."""
        planned = {model.name: model for model in self.plan.models}
        for model in self.config.models:
            own = planned.get(model.name)
            methods = defined(self.config, model, own)
            for task in self.plan.tasks_of(self.config, model):
                yield Subject(model, own, task, methods)


def defined(config: RunConfig, model: ModelConfig, planned: ModelPlan | None) -> list[str]:
    """Methods that exist for the model; all of them where neither its plan nor its id tells its family."""
    capabilities, entries = capabilities_of(model, planned), config.methods_of(model)
    if capabilities is None:
        return [entry.name for entry in entries]
    methods = configured(config)
    return [entry.name for entry in entries if defined_options(methods[entry.name], entry, capabilities)]


def capabilities_of(model: ModelConfig, planned: ModelPlan | None) -> frozenset[Capability] | None:
    """What methods may need of a model and it has; None where neither its plan nor its id tells its family."""
    geometry = shape_of(model)
    if planned is not None:
        return planned.resolved.capabilities
    return None if geometry is None else geometry.model_family.capabilities
