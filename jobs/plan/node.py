"""The graph of a run: nodes (wanted artifacts, with all that decides their numbers), and the plans of models."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

from closelook.jobs.plan.models import Reading
from closelook.jobs.store import Artifact, Ledger, Origin, State, Store, key_of

if TYPE_CHECKING:
    import numpy as np

    from closelook.evaluation.scoring.faithfulness.flips import Flips
    from closelook.jobs.config import ModelConfig, RunConfig
    from closelook.jobs.plan.inputs import Inputs
    from closelook.jobs.plan.models import ResolvedModel
    from closelook.jobs.plan.proposals import Texts
    from closelook.lrp_core.records.types import Request


@dataclass(frozen=True, eq=False, kw_only=True)
class Node:
    """An artifact that a run wants. Products add the fields that their computation needs.

    The key of the artifact is `key_of(**key_fields)`. Two nodes are equal if their artifacts are. When a node is sent
    to a worker, `model` and `key_fields` are left out: they are large and only the driver uses them.
    """

    artifact: Artifact
    samples: int = 0  # how many samples the artifact covers
    made_of: tuple[Artifact, ...] = ()  # needed before the node can be computed, and for it to count as done
    needs: tuple[Artifact, ...] = ()  # needed before the node can be computed
    forwards: Hashable = None  # nodes of a unit with equal `forwards` share its forward passes
    model: ModelPlan | None = None
    key_fields: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.key_fields and not self.artifact.key:
            object.__setattr__(self, "artifact", self.artifact.keyed(key_of(**self.key_fields)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Node) and self.artifact == other.artifact

    def __hash__(self) -> int:
        return hash(self.artifact)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "model": None, "key_fields": {}}

    def of(self, model: ModelPlan) -> Self:
        """A copy of the node with the plan of its model."""
        node = object.__new__(type(self))  # plans have very many nodes: `dataclasses.replace` would be too slow
        node.__dict__.update(self.__dict__, model=model)
        return node

    @property
    def sources(self) -> tuple[Artifact, ...]:
        """The artifacts from which this one is computed."""
        return (*self.made_of, *self.needs)

    @property
    def plan(self) -> ModelPlan:
        """The plan of the node's model; only on the driver."""
        assert self.model is not None
        return self.model

    @property
    def inputs(self) -> Inputs:
        """The samples of the node's task as its model reads them; only on the driver."""
        return self.plan.inputs[self.artifact.task]

    def state(self, ledger: Ledger) -> State:
        """The state of the artifact; done counts as missing while an artifact in `made_of` is not done."""
        state = ledger.state(self.artifact)
        return "missing" if state == "done" and not all(map(ledger.is_done, self.made_of)) else state


@dataclass(frozen=True, eq=False, kw_only=True)
class Cell(Node):
    """The relevance of one method for a model, task and precision: of tokens, heads, layers, neurons or every label."""

    requests: tuple[Request, ...]
    chosen: Mapping[str, Any] = field(default_factory=dict)  # values of the method's options that the config left open


@dataclass(frozen=True, eq=False, kw_only=True)
class Choice(Node):
    """The trials of a method's open options, by which options are chosen for a model, task and precision."""

    options: tuple[dict[str, Any], ...]  # a set of options for each trial
    request: Request  # the variant (explanation, embedding) by which trials are compared
    rows: np.ndarray  # the samples on which they are tried: indices into the views
    flips: Flips  # how tokens are removed along a curve
    texts: Texts | None  # from which other tokens are drawn, where these replace removed ones
    record: Mapping[str, Any] | None  # the manifest of the trials, once they are complete

    @property
    def chosen(self) -> dict[str, Any] | None:
        """The options that were chosen; None while the trials are not complete."""
        return None if self.record is None else self.options[self.record["chosen"]]

    def __str__(self) -> str:
        return f"{self.artifact.method} on {self.artifact.model}/{self.artifact.task}/{self.artifact.dtype}"


@dataclass(frozen=True)
class ModelPlan:
    """The cells of one model, and the choices of options for which some of its cells wait."""

    resolved: ResolvedModel
    inputs: dict[str, Inputs]  # by task
    cells: tuple[Cell, ...]
    choices: tuple[Choice, ...] = ()
    tasks: tuple[str, ...] = ()  # the tasks that the model takes, prepared or not
    reading: Reading = field(default_factory=lambda: Reading(""))

    @property
    def tokenizer(self) -> str:
        """The key of the tokenizer, or image processor, that reads the model's samples."""
        return self.reading.key

    @property
    def config(self) -> ModelConfig:
        return self.resolved.config

    def key_fields(self, place: Artifact, rows: Sequence[int], seed: int) -> dict[str, Any]:
        """The fields of a key that tell apart numbers of this model on the samples `rows` of the place's task."""
        inputs = self.inputs[place.task].digest
        return {**self.resolved.key_fields, "dtype": place.dtype, "inputs": inputs, "subset": rows, "seed": seed}

    @property
    def name(self) -> str:
        return self.config.name


@dataclass(frozen=True)
class Plan:
    """The plan of a whole run.

    `failures` gives the reason for each model that cannot be reached now, by name. `undefined` lists (model, method)
    where the method does not exist for the model.
    """

    models: tuple[ModelPlan, ...]
    failures: dict[str, str] = field(default_factory=dict)
    undefined: tuple[tuple[str, str], ...] = ()
    unprepared: tuple[tuple[str, str], ...] = ()  # (model, task) without tokenised views

    @cached_property
    def by_name(self) -> dict[str, ModelPlan]:
        """The plans of models by the models' names."""
        return {model.name: model for model in self.models}

    def cells(self) -> Iterator[Cell]:
        for model in self.models:
            yield from model.cells

    @property
    def undecided(self) -> list[Choice]:
        """The choices of options that are not made yet. The cells of their methods are not in the plan."""
        return [choice for model in self.models for choice in model.choices if choice.chosen is None]

    def tasks_of(self, config: RunConfig, model: ModelConfig) -> Sequence[str]:
        """The tasks of the run that a model takes; of a model out of reach now, those that the config gives it."""
        planned = self.by_name.get(model.name)
        return config.tasks_for(model) if planned is None else planned.tasks


@dataclass(frozen=True)
class Run:
    """A run as the driver sees it: its configuration, the plan of its models, and the ledger of its store."""

    config: RunConfig
    plan: Plan
    ledger: Ledger

    @property
    def store(self) -> Store:
        return self.ledger.store

    def token_budget(self, node: Node) -> int:
        """The most tokens of a batch of the node: by the settings of its model, else by those of the run."""
        return node.plan.config.token_budget or self.config.token_budget

    @cached_property
    def settings(self) -> dict[str, Any]:
        """The configuration as JSON for manifests. Cached: to make it for each of many models takes time."""
        return self.config.model_dump(mode="json")


@dataclass(frozen=True, eq=False)
class Part:
    """The part of one node that one unit of work computes: a shard of the node's artifact."""

    node: Any  # of a class that the product knows
    shard: str  # the unit's name in the shard's file name
    inputs: Any = None  # what this part needs in addition to the unit's rows

    @property
    def paths(self) -> tuple[str, ...]:
        """The paths of the shard's files, one in each folder of the artifact."""
        artifact = self.node.artifact
        return tuple(f"{folder}/{artifact.shard(self.shard)}" for folder in artifact.folders)

    @property
    def origin(self) -> Origin:
        """The artifact's key and the unit's name, which the footer of the shard's file records."""
        return Origin(self.node.artifact.key, self.shard)
