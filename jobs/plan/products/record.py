"""What a product is to whoever counts, explains or removes artifacts: a record, so that nobody needs its stage."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from jobs.store import Artifact, Ledger, State

if TYPE_CHECKING:
    from jobs.config import ModelConfig, RunConfig
    from jobs.plan.cells import ModelPlan, Plan

#: How many a run will want, by precision, of a model, a task and its methods where samples or weights are not here.
Expected = Callable[["RunConfig", "ModelConfig", str, list[str]], dict[str, int]]


@dataclass(frozen=True)
class Wanted:
    """An artifact that a run wants, and the artifacts it is made of, without which it does not count as done."""

    artifact: Artifact
    samples: int  # that it is about
    of: tuple[Artifact, ...] = ()

    def state(self, ledger: Ledger) -> State:
        state = ledger.state(self.artifact)
        return state if state != "done" or all(map(ledger.is_done, self.of)) else "missing"


def each_method(config: RunConfig, model: ModelConfig, task: str, methods: list[str]) -> dict[str, int]:
    """What is expected of products with an artifact for every method in every precision."""
    return dict.fromkeys(model.dtypes_for(task), len(methods))


def of_no_task(config: RunConfig, model: ModelConfig, task: str, methods: list[str]) -> dict[str, int]:
    """What is expected of products that belong to a model or a corpus: none of them counts for a task."""
    return {}


class Made(Protocol):
    """What a run is to make of one model: an artifact, and those it is made of."""

    @property
    def artifact(self) -> Artifact: ...

    @property
    def of(self) -> tuple[Artifact, ...]: ...


def of_each_model(
    made: Callable[[RunConfig, ModelPlan, Ledger], Iterable[Made]],
) -> Callable[[RunConfig, Plan, Ledger], Iterator[Wanted]]:
    """The `wanted` of a product of which `made` names what each model has, a sample each."""

    def wanted(config: RunConfig, plan: Plan, ledger: Ledger) -> Iterator[Wanted]:
        return (Wanted(one.artifact, 1, one.of) for model in plan.models for one in made(config, model, ledger))

    return wanted


@dataclass(frozen=True)
class Product:
    """One kind of artifact."""

    name: str  # of its artifacts
    heading: str  # in the table of `closelook status`
    plural: str  # what is counted
    stage: str  # the command that makes it
    wanted: Callable[[RunConfig, Plan, Ledger], Iterable[Wanted]]
    expected: Expected
    outdated: str  # why one of another key is of no use here
