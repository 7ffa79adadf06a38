"""The nodes of a run's graph, artifacts that it wants, with all that decides their numbers; and its plan."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

from jobs.plan.models import Reading
from jobs.store import Artifact, Ledger, Origin, State, Store, key_of

if TYPE_CHECKING:
    import numpy as np

    from evaluation.scoring.faithfulness.flips import Flips
    from jobs.config import ModelConfig, RunConfig
    from jobs.plan.inputs import Inputs
    from jobs.plan.models import ResolvedModel
    from jobs.plan.proposals import Texts
    from lrp_core.records.types import Request


@dataclass(frozen=True, eq=False, kw_only=True)
class Node:
    """An artifact that a run wants. Products add the fields that their computation needs.

    The key of the artifact is `key_of(**key_fields)`. Nodes are equal where their artifacts are. A node travels to
    workers without `model` and `key_fields`, which are large and concern the driver alone.
    """

    artifact: Artifact
    samples: int = 0  # the artifact is about so many
    made_of: tuple[Artifact, ...] = ()  # until these are done, the node cannot be made and does not count as done
    needs: tuple[Artifact, ...] = ()  # until these are done, the node cannot be made
    forwards: Hashable = None  # nodes of a unit that are equal in this are computed by the same forwards
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
        """The node with its model's plan: of very many, `dataclasses.replace` would take as long as all else."""
        node = object.__new__(type(self))
        node.__dict__.update(self.__dict__, model=model)
        return node

    @property
    def sources(self) -> tuple[Artifact, ...]:
        """The artifacts whose numbers those of this one depend on."""
        return (*self.made_of, *self.needs)

    @property
    def plan(self) -> ModelPlan:
        """The model's plan, on the driver."""
        assert self.model is not None
        return self.model

    def state(self, ledger: Ledger) -> State:
        """The artifact's state; see `state_of`."""
        return state_of(ledger, self.artifact, self.made_of)


def state_of(ledger: Ledger, artifact: Artifact, made_of: Sequence[Artifact]) -> State:
    """The artifact's state; one that is done counts as missing while something it is made of is not done."""
    state = ledger.state(artifact)
    if state == "done" and not all(map(ledger.is_done, made_of)):
        return "missing"
    return state


@dataclass(frozen=True, eq=False, kw_only=True)
class Cell(Node):
    """Relevance of a method: of tokens, heads, layers, neurons, or of tokens for every label."""

    requests: tuple[Request, ...]
    chosen: Mapping[str, Any] = field(default_factory=dict)  # options of its method that the config leaves open


@dataclass(frozen=True, eq=False, kw_only=True)
class Choice(Node):
    """The trials of a method for a model, task and precision."""

    options: tuple[dict[str, Any], ...]  # of each trial
    request: Request  # the variant by which trials are compared
    rows: np.ndarray  # samples: indices into the views
    flips: Flips  # how tokens go
    texts: Texts | None  # of tokens in their place
    record: Mapping[str, Any] | None  # the manifest of the trials, once they are complete

    @property
    def chosen(self) -> dict[str, Any] | None:
        """The options that were chosen; None before."""
        return None if self.record is None else self.options[self.record["chosen"]]

    def __str__(self) -> str:
        return f"{self.artifact.method} on {self.artifact.model}/{self.artifact.task}/{self.artifact.dtype}"


@dataclass(frozen=True)
class ModelPlan:
    """The cells of one model, and the choices among options that they wait for."""

    resolved: ResolvedModel
    inputs: dict[str, Inputs]  # by task
    cells: tuple[Cell, ...]
    choices: tuple[Choice, ...] = ()
    tasks: tuple[str, ...] = ()  # that it takes, prepared or not
    reading: Reading = field(default_factory=lambda: Reading(""))

    @property
    def tokenizer(self) -> str:
        """The key of what reads its samples."""
        return self.reading.key

    @property
    def name(self) -> str:
        return self.resolved.config.name


@dataclass(frozen=True)
class Plan:
    """A whole run. `failures` are models out of reach now; `undefined` are (model, method) pairs that do not exist."""

    models: tuple[ModelPlan, ...]
    failures: dict[str, str] = field(default_factory=dict)
    undefined: tuple[tuple[str, str], ...] = ()
    unprepared: tuple[tuple[str, str], ...] = ()  # (model, task) without tokenised views

    def cells(self) -> Iterator[Cell]:
        for model in self.models:
            yield from model.cells

    @property
    def undecided(self) -> list[Choice]:
        """Choices that are not made yet: the cells of their methods have no keys, and are not among the cells."""
        return [choice for model in self.models for choice in model.choices if choice.chosen is None]

    def tasks_of(self, config: RunConfig, model: ModelConfig) -> Sequence[str]:
        """The tasks of the run that a model takes; for a model out of reach, the tasks that it may take."""
        tasks = next((planned.tasks for planned in self.models if planned.name == model.name), None)
        return config.tasks_for(model) if tasks is None else tasks


@dataclass(frozen=True)
class Run:
    """A run as the driver sees it: its configuration, the plan of each model, and the state of its store."""

    config: RunConfig
    plan: Plan
    ledger: Ledger

    @property
    def store(self) -> Store:
        return self.ledger.store

    @cached_property
    def settings(self) -> dict[str, Any]:
        """The configuration as manifests name it, the same object for all: of many models it takes time to make."""
        return self.config.model_dump(mode="json")


@dataclass(frozen=True, eq=False)
class Part:
    """The share of a unit of work that becomes a shard of a node."""

    node: Node
    shard: str  # the unit's name in the shard's file name
    inputs: Any = None  # beside the unit's rows, the inputs of this part alone

    @property
    def paths(self) -> tuple[str, ...]:
        """The paths of the shard, one in each folder of the artifact."""
        artifact = self.node.artifact
        return tuple(f"{folder}/{artifact.shard(self.shard)}" for folder in artifact.folders)

    @property
    def origin(self) -> Origin:
        """The part as the footer of its shard names it."""
        return Origin(self.node.artifact.key, self.shard)
