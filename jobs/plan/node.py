"""The nodes of a run's graph: artifacts that it wants, with all that decides their numbers."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from jobs.store import Artifact, Ledger, State, Store, key_of

if TYPE_CHECKING:
    from jobs.config import RunConfig
    from jobs.plan.cells import ModelPlan, Plan


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
            object.__setattr__(self, "artifact", replace(self.artifact, key=key_of(**self.key_fields)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Node) and self.artifact == other.artifact

    def __hash__(self) -> int:
        return hash(self.artifact)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "model": None, "key_fields": {}}

    @property
    def plan(self) -> ModelPlan:
        """The model's plan, on the driver."""
        assert self.model is not None
        return self.model

    def state(self, ledger: Ledger) -> State:
        """The artifact's state; one that is done counts as missing while something it is made of is not done."""
        state = ledger.state(self.artifact)
        if state == "done" and not all(map(ledger.is_done, self.made_of)):
            return "missing"
        return state


@dataclass(frozen=True)
class Run:
    """A run as the driver sees it: its configuration, what it wants of each model, and what its store holds."""

    config: RunConfig
    plan: Plan
    ledger: Ledger

    @property
    def store(self) -> Store:
        return self.ledger.store


@dataclass(frozen=True, eq=False)
class Part:
    """The share of a unit that becomes one shard of one node."""

    node: Node
    shard: str  # the unit's name in the shard's file name
    inputs: Any = None  # beside the unit's rows, the inputs of this part alone

    @property
    def paths(self) -> tuple[str, ...]:
        """The paths of the shard, one in each folder of the artifact."""
        artifact = self.node.artifact
        return tuple(f"{folder}/{artifact.shard(self.shard)}" for folder in artifact.folders)
